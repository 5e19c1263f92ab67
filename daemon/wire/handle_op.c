#include <math.h>
#include <string.h>

#include "daemon/core/calibration.h"
#include "daemon/wire/handlers.h"
#include "daemon/wire/pending.h"

_Static_assert(offsetof(struct wire_compress_by_request, calibrate) == sizeof(struct wire_compress_request), "it begins as COMPRESS");

/* calibrate and observed may be empty. */
static void compress(struct link *link, const struct packet_header *header, const struct wire_compress_request *request,
                     const char *calibrate, const char *observed)
{
    struct compress_args args = {
        .encoding = request->encoding,
        .mode = request->mode,
        .min_sqnr_db = request->min_sqnr_db,
        .max_error = request->max_error,
    };
    const char *why;

    if (!*request->sel)
        REFUSE(HBM_E_INVALID, "nothing is selected");
    if (!hbm_codec_name(request->encoding.codec))
        REFUSE(HBM_E_INVALID, "codec %u is none", request->encoding.codec);
    if (request->mode > WIRE_MODE_PARK)
        REFUSE(HBM_E_INVALID, "mode %u is none; a compression replaces, copies or parks", request->mode);
    if (request->flags)
        REFUSE(HBM_E_INVALID, "flags 0x%x; a compression takes none", request->flags);
    if (isnan(request->min_sqnr_db) || isnan(request->max_error) || request->max_error < 0)
        REFUSE(HBM_E_INVALID, "a quality bound that is no number, or negative");
    if (!calibration_parse(*calibrate ? calibrate : NULL, &args.encoding, &args.calibration, &why))
        REFUSE(HBM_E_INVALID, "%s", why);
    if (*observed && !(args.calibration.method & HBM_CALIBRATE_OBSERVED))
        REFUSE(HBM_E_INVALID, "whose observed ranges are used is said, but not that such are: calibrate by observed");

    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_op_begun);
    if (!pending)
        return;
    memcpy(args.sel, request->sel, sizeof(args.sel));
    memcpy(args.as, request->as, sizeof(args.as));
    memcpy(args.observed, observed, strlen(observed) + 1);
    verb_compress(link->core, &pending->call, &args);
}

void handle_compress(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(compress);

    compress(link, header, request, "", "");
}

void handle_compress_by(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(compress_by);

    compress(link, header, (const void *)packet->body, request->calibrate, request->observed);
}

void handle_decompress(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(decompress);

    if (!*request->sel)
        REFUSE(HBM_E_INVALID, "nothing is selected");
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_op_begun);
    if (pending)
        verb_decompress(link->core, &pending->call, request->sel);
}

void handle_offload(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(offload);

    if (!*request->sel)
        REFUSE(HBM_E_INVALID, "nothing is selected");
    if (request->tier >= HBM_PLACES)
        REFUSE(HBM_E_INVALID, "tier %u is none", request->tier);
    if (request->flags & ~(WIRE_FORCE | WIRE_LIVE))
        REFUSE(HBM_E_INVALID, "flags 0x%x; an offload takes FORCE and LIVE", request->flags);
    if ((request->flags & WIRE_LIVE) && request->tier != HBM_TIER_HOST)
        REFUSE(HBM_E_INVALID, "only host memory can be used where it lies: LIVE needs tier host");
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_op_begun);
    if (pending && request->flags & WIRE_LIVE)
        verb_demote(link->core, &pending->call, request->sel, request->flags & WIRE_FORCE);
    else if (pending)
        verb_offload(link->core, &pending->call, request->sel, request->tier, request->flags & WIRE_FORCE);
}

void handle_restore(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(restore);

    if (!*request->sel)
        REFUSE(HBM_E_INVALID, "nothing is selected");
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_op_begun);
    if (pending)
        verb_restore(link->core, &pending->call, request->sel);
}

void handle_prefetch(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(prefetch);

    if (!*request->sel)
        REFUSE(HBM_E_INVALID, "nothing is selected");
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_op_begun);
    if (pending)
        verb_prefetch(link->core, &pending->call, request->sel);
}

void handle_op_cancel(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(op_cancel);
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_done);

    if (pending)
        verb_op_cancel(link->core, &pending->call, request->op);
}
