#include "daemon/core/tracks.h"

#include <stdlib.h>

#include "daemon/core/hold.h"
#include "daemon/core/links.h"

int tracks_make(struct transition *transition)
{
    unsigned n = transition->n < TRANSITION_TRACKS ? (unsigned)transition->n : TRANSITION_TRACKS;

    transition->tracks = calloc(n + 1, sizeof(*transition->tracks));
    transition->n_tracks = transition->tracks ? n : 0;
    return transition->tracks
               ? 0
               : transition_refuse(transition, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
}

void tracks_drop(struct transition *transition)
{
    for (unsigned i = 0; i < transition->n_tracks; i++) {
        struct track *track = &transition->tracks[i];
        links_free(track->links);
        if (!track->transition || !track->keeping)
            continue;
        timer_stop(transition->core, &track->keep.timer);
        list_unlink(&track->keep.node);
    }
    free(transition->tracks);
    transition->tracks = NULL;
    transition->n_tracks = 0;
}

bool transition_is_over(const struct transition *transition)
{
    return transition->cancelled || transition->step_error;
}

static bool waits_for_memory(const struct track *track)
{
    return track->transition && track->keeping && !list_empty(&track->keep.node);
}

void tracks_cancel(struct transition *transition, const struct track *but)
{
    struct track *waits = NULL;

    for (unsigned i = 0; i < transition->n_tracks; i++) {
        struct track *track = &transition->tracks[i];
        bool busy = track->transition && track != but;
        if (busy && waits_for_memory(track))
            waits = track;
        else if (busy && track->keeping)
            extent_create_cancel(&track->keep);
        else if (busy && track->links)
            links_cancel(track);
        else if (busy)
            transition->core->env.cancel(transition->core->env.context, &track->job);
    }
    if (waits) /* ends at once, and with it perhaps all */
        extent_create_cancel(&waits->keep);
}

static uint64_t bytes_under_way(const struct transition *transition)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < transition->n_tracks; i++)
        if (transition->tracks[i].transition)
            bytes += plan_bytes(transition->tracks[i].plan);
    return bytes;
}

/* Of those that are swapped one by one, none goes before what somebody may come to wait for. And where one waits for
 * memory, those behind it would only stand in the same queue. */
struct track *tracks_next(struct transition *transition, unsigned at_once)
{
    if (transition->n_busy >= at_once && (transition->one_by_one || bytes_under_way(transition) >= TRANSITION_SMALL))
        return NULL;
    struct track *idle = NULL;
    for (unsigned i = 0; i < transition->n_tracks; i++) {
        struct track *track = &transition->tracks[i];
        if (waits_for_memory(track))
            return NULL;
        if (!idle && !track->transition)
            idle = track;
    }
    return idle;
}

bool transition_creates(const struct transition *transition, const struct extent_create *create)
{
    for (unsigned i = 0; i < transition->n_tracks; i++)
        if (create == &transition->tracks[i].keep)
            return true;
    return false;
}

uint64_t transition_bytes(const struct transition *transition)
{
    uint64_t bytes = transition->bytes_done;

    for (unsigned i = 0; i < transition->n_tracks; i++)
        if (transition->tracks[i].transition)
            bytes += transition->tracks[i].bytes;
    return bytes;
}
