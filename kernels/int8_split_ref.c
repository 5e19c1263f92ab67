/* int8-split on the host. What the channels reach gathers in marks[], which become 0, or 1 + the place of the channel among
 * those that lie apart. */
#include "kernels/int8_split.h"
#include "kernels/reference.h"

struct codec_view split_view_of(const struct codec_job *job)
{
    struct codec_job channels = *job;

    channels.encoding.granularity = HBM_PER_CHANNEL;
    return codec_view_of(&channels);
}

static void measure(const struct codec_job *job, const struct codec_view *view)
{
    struct codec_walk walk = {0};

    memset(job->marks, 0, view->units * sizeof(*job->marks));
    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk))
        tally_raise(&job->marks[walk.unit], element_magnitude(element_load(job->raw_in, job->dtype, i)));
}

static uint64_t reach(const uint32_t *loudness, uint64_t channels, uint32_t least)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < channels; i++)
        n += loudness[i] >= least;
    return n;
}

/* The largest magnitude that so many channels reach. */
static uint32_t threshold(const uint32_t *loudness, uint64_t channels, uint64_t kept)
{
    uint32_t least = 0;

    for (uint32_t bit = 1u << (SPLIT_BITS - 1); bit; bit >>= 1)
        if (reach(loudness, channels, least | bit) >= kept)
            least |= bit;
    return least;
}

static void split(const struct codec_job *job, const struct codec_view *view)
{
    uint32_t *marks = job->marks, least = threshold(marks, view->units, job->encoding.group), n = 0, rest = 0;
    uint64_t alike = job->encoding.group - reach(marks, view->units, least + 1); /* of those at the threshold */

    for (uint64_t i = 0; i < view->units; i++) {
        bool apart = marks[i] > least || (marks[i] == least && alike);

        alike -= apart && marks[i] == least;
        if (apart)
            job->channels[n++] = (int32_t)i;
        else
            tally_raise(&rest, marks[i]);
        marks[i] = apart ? n : 0;
    }
    job->scale[0] = int8_scale(element_float(rest));
}

/* The range is that of the other channels' codes. */
static void tally_apart(struct codec_tally *tally, float x, float stored)
{
    uint32_t highest = tally->highest, lowest = tally->lowest;

    codec_tally_add(tally, x, stored, element_magnitude(x) > ELEMENT_F16_MAX);
    tally->highest = highest;
    tally->lowest = lowest;
}

static void encode(const struct codec_job *job, const struct codec_view *unused, struct codec_tally *tally)
{
    const struct codec_view view = split_view_of(job);
    struct codec_walk walk = {0};

    (void)unused;
    measure(job, &view);
    split(job, &view);
    for (uint64_t i = 0; i < view.count; i++, codec_walk_step(&view, &walk)) {
        float x = element_load(job->raw_in, job->dtype, i), scale = job->scale[0];
        uint32_t mark = job->marks[walk.unit];
        int code = 0;

        if (mark) {
            uint64_t at = split_at(&view, job->encoding.group, mark - 1, i, walk.in_row);

            element_store(job->outliers, HBM_F16, at, x);
            tally_apart(tally, x, element_load(job->outliers, HBM_F16, at));
        } else {
            bool clipped;

            code = int8_code(x, scale, &clipped);
            codec_tally_add(tally, x, int8_value(code, scale), clipped);
        }
        ((int8_t *)job->data)[i] = (int8_t)code;
    }
}

static void decode(const struct codec_job *job, const struct codec_view *unused)
{
    const struct codec_view view = split_view_of(job);
    uint64_t kept = job->encoding.group, apart = view.count ? view.rows / view.period * kept * view.row : 0;

    (void)unused;
    for (uint64_t i = 0; i < view.count; i++)
        element_store(job->raw_out, job->dtype, i, int8_value(((const int8_t *)job->data)[i], job->scale[0]));
    for (uint64_t i = 0; i < apart; i++) {
        uint64_t row = i / view.row, channel = (uint32_t)job->channels[row % kept];

        if (channel < view.units) /* whoever may write the buffer may have written anything there */
            element_store(job->raw_out, job->dtype, (row / kept * view.units + channel) * view.row + i % view.row,
                          element_load(job->outliers, HBM_F16, i));
    }
}

const struct codec_reference codec_reference_int8_split = {encode, decode};
