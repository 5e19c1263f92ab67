#include "client/ctl/verbs.h"

#include <stddef.h>
#include <string.h>

#include "proto/vocab.h"

#define OPTIONS(...) (const struct option_row[]){__VA_ARGS__, {0}}
#define FLAG(name, param) {name, NULL, param, OPTION_FLAG, false}
#define TEXT(name, value, param) {name, value, param, OPTION_TEXT, false}
#define NUMBER(name, value, param) {name, value, param, OPTION_NUMBER, false}
#define CHOICE(name, value, param) {name, value, param, OPTION_CHOICE, false}
#define REQUIRED(name, value, param, kind) {name, value, param, kind, true}
#define VERBOSE FLAG("--verbose", NULL)
#define ASYNC FLAG("--async", "async")
#define PRIORITY CHOICE("--priority", "0|1|2|3|4|5|6|7|8|9|never", NULL)

/* clang-format off */
static const struct verb verbs[] = {
    {"status", "", 0, 0, NULL, "hbm.status", {0}, run_call, show_status, "the daemon at a glance"},
    {"devices", "", 0, 0, OPTIONS(FLAG("--links", NULL)), "hbm.devices", {0}, run_call, show_devices,
     "devices and how full their tiers are; --links: what goes over their links, beside what did and may"},
    {"who", "[DEVICE]", 0, 1, NULL, "hbm.who", {"device"}, run_call, show_who,
     "who holds what of each device, by the ledger and by the driver"},
    {"models", "[MODEL]", 0, 1, NULL, "hbm.models", {"model"}, run_call, show_models,
     "models and where they lie; of one everything, with the order and the windows in which it is used"},
    {"sessions", "", 0, 0, NULL, "hbm.sessions", {0}, run_call, show_sessions, "connected clients"},
    {"accounts", "", 0, 0, NULL, "hbm.accounts", {0}, run_call, show_accounts, "what each user has and may have"},
    {"ops", "", 0, 0, NULL, "hbm.ops", {0}, run_call, show_ops, "operations, running and recent"},
    {"ls", "[GLOB]", 0, 1, OPTIONS(TEXT("--group", "G", "group")), "hbm.ls", {"glob"}, run_ls, NULL,
     "buffers by name; nothing matched prints nothing"},
    {"show", "SEL", 1, 1, NULL, "hbm.show", {"sel"}, run_show, NULL, "everything about buffers"},
    {"why-not-free", "[SEL]", 0, 1, NULL, "hbm.why_not_free", {"sel"}, run_why_not_free, NULL,
     "what keeps buffers from being freed, and what would end that; without SEL of what clients hold that have ended"},
    {"hash", "SEL", 1, 1, NULL, "hbm.hash", {"sel"}, run_call, show_hashes,
     "XXH3-64 of the bytes an attach would see, one line a buffer: HASH  NAME"},
    {"attach", "SEL", 1, 1, OPTIONS(FLAG("--rw", NULL), NUMBER("--hold", "SECONDS", NULL)), NULL, {0}, run_attach, NULL,
     "map buffers as any client would, print ADDRESS SIZE HASH NAME, hold the lease"},
    {"load", "FILE.safetensors|FILE.gguf...|DIR", 1, CLI_WORDS_MAX,
     OPTIONS(REQUIRED("--as", "MODEL", NULL, OPTION_TEXT), TEXT("--device", "UUID|N", NULL), FLAG("--shared", NULL),
             FLAG("--replace", NULL), PRIORITY),
     NULL, {0}, run_load, NULL, "publish the tensors of safetensors or GGUF files as a model; of GGUF's quantised types the blocks, as bytes"},
    {"save", "MODEL FILE|DIR", 2, 2, NULL, NULL, {0}, run_save, NULL,
     "write a loaded model back to files, byte for byte (DIR for several shards)"},
    {"put", "NAME FILE", 2, 2, OPTIONS(TEXT("--device", "UUID|N", NULL), FLAG("--shared", NULL), PRIORITY), NULL, {0}, run_put,
     NULL, "the bytes of a file as a new buffer, kept until it is freed"},
    {"get", "NAME FILE", 2, 2, NULL, NULL, {0}, run_get, NULL, "the bytes of a buffer as a file"},
    {"compress", "SEL", 1, 1,
     OPTIONS(REQUIRED("--codec", HBM_CODEC_CHOICES, "codec", OPTION_CHOICE),
             CHOICE("--granularity", "tensor|channel[:AXIS[:K]]|group:N", "granularity"),
             CHOICE("--calibrate", "minmax|percentile:P|mse|entropy|range:T|observed|observed:minmax|observed:average|observed:percentile:P|observed:mse|observed:entropy", "calibrate"), TEXT("--observed", "NAME", "observed"), CHOICE("--mode", "replace|copy|park", "mode"),
             TEXT("--as", "NAME", "as"), NUMBER("--min-sqnr", "DB", "min_sqnr"),
             NUMBER("--max-error", "E", "max_error"), ASYNC),
     "hbm.compress", {"sel"}, run_operation, show_receipts, "encode buffers; prints what it cost in quality"},
    {"advise", "[SEL]", 0, 1,
     OPTIONS(FLAG("--measure", NULL), TEXT("--device", "UUID|N", NULL), TEXT("--profile", "FILE", NULL), TEXT("--since", "FILE", NULL),
             NUMBER("--pass", "SECONDS", NULL)),
     NULL, {0}, run_bottlenecks, NULL,
     "which bottleneck is real (latency, bandwidth, sharing, capacity), what pays, and how much; of SEL, or of all that is leased"},
    {"observe", "SEL", 1, 1, OPTIONS(NUMBER("--momentum", "M", "momentum"), FLAG("--forget", "forget"), TEXT("--export", "FILE", NULL),
                                     TEXT("--import", "FILE", NULL), CHOICE("--format", "tensorrt|onnxruntime", NULL), ASYNC),
     "hbm.observe", {"sel"}, run_observe, show_observed, "add the ranges of what is in buffers now to those of the batches that were there before"},
    {"advise-codec", "SEL", 1, 1,
     OPTIONS(CHOICE("--codec", HBM_CODEC_CHOICES, "codec"), NUMBER("--min-sqnr", "DB", "min_sqnr"),
             NUMBER("--max-error", "E", "max_error"), TEXT("--eval", "CMD", NULL), FLAG("--apply", "apply"), VERBOSE, ASYNC),
     "hbm.advise_codec", {"sel"}, run_advise, show_advice,
     "try every codec on the device, keep nothing, and say which to use for each group"},
    {"decompress", "SEL", 1, 1, OPTIONS(ASYNC), "hbm.decompress", {"sel"}, run_operation, show_decoded,
     "back to the published dtype; what is parked is not any more"},
    {"offload", "SEL", 1, 1, OPTIONS(REQUIRED("--to", "host|disk|peer", "to", OPTION_CHOICE), FLAG("--force", "force"), FLAG("--live", "live"), VERBOSE, ASYNC),
     "hbm.offload", {"sel"}, run_operation, show_moved,
     "move buffers off the device, with what shares their arenas; --live: under those who have them attached"},
    {"restore", "SEL", 1, 1, OPTIONS(VERBOSE, ASYNC), "hbm.restore", {"sel"}, run_operation, show_moved,
     "move buffers back to the device"},
    {"prefetch", "SEL", 1, 1, OPTIONS(VERBOSE, ASYNC), "hbm.prefetch", {"sel"}, run_operation, show_moved,
     "bring buffers back in order, as far as there is room at once"},
    {"sleep", "MODEL", 1, 1,
     OPTIONS(CHOICE("--to", "host|disk", "to"), CHOICE("--codec", HBM_CODEC_CHOICES, "codec"),
             CHOICE("--granularity", "tensor|channel[:AXIS]|group:N", "granularity"), NUMBER("--min-sqnr", "DB", "min_sqnr"),
             NUMBER("--max-error", "E", "max_error"), VERBOSE, ASYNC),
     "hbm.sleep", {"model"}, run_operation, show_moved, "move a whole model off the device"},
    {"wake", "MODEL", 1, 1, OPTIONS(VERBOSE, ASYNC), "hbm.wake", {"model"}, run_operation, show_moved,
     "move a whole model back to the device"},
    {"wait", "OP", 1, 1, OPTIONS(NUMBER("--timeout", "SECONDS", "timeout_seconds")), "hbm.wait", {"op"}, run_wait,
     show_op, "wait for an operation; fails if it failed"},
    {"cancel", "OP", 1, 1, NULL, "hbm.cancel", {"op"}, run_cancel, show_op, "cancel an operation: all of it or nothing"},
    {"priority", "SEL 0..9|never", 2, 2, NULL, "hbm.priority", {"sel", "priority"}, run_call, show_priorities,
     "which memory goes first where others wait for room, 0 before 9; or never"},
    {"free", "SEL", 1, 1, NULL, "hbm.free", {"sel"}, run_call, show_freed, "free buffers that nobody leases"},
    {"rm", "MODEL", 1, 1, NULL, "hbm.rm", {"model"}, run_call, show_removed, "remove a model that nobody leases"},
    {"rename", "NAME NEW", 2, 2, NULL, "hbm.rename", {"name", "to"}, run_call, show_renamed, "rename a buffer or a model"},
    {"kick", "SESSION", 1, 1, NULL, "hbm.kick", {"session"}, run_call, show_kicked, "disconnect a client"},
    {"drain", "", 0, 0, OPTIONS(TEXT("--device", "UUID|N", "device"), VERBOSE), "hbm.drain", {0}, run_call, show_moved,
     "grant nothing new on a device until hbmd restarts, and move what is unleased to host memory"},
    {"events", "", 0, 0,
     OPTIONS(FLAG("--follow", NULL), NUMBER("--since", "SEQ", "since"), NUMBER("--limit", "N", "limit")), "hbm.events",
     {0}, run_events, NULL, "what happened, oldest first"},
    {"top", "", 0, 0,
     OPTIONS(FLAG("--once", NULL), CHOICE("--sort", "bytes|name|age", NULL), NUMBER("--interval", "SECONDS", NULL)), NULL, {0}, run_top,
     NULL, "devices, links, operations, models and clients on one screen, every second anew"},
    {"map", "", 0, 0, OPTIONS(TEXT("--svg", "FILE", NULL)), NULL, {0}, run_map, NULL,
     "which models lie in which tier of each device, as a bar each or as a picture"},
    {"metrics", "", 0, 0, OPTIONS(NUMBER("--listen", "PORT", NULL)), "hbm.status", {0}, run_metrics, NULL,
     "counters and gauges as Prometheus reads them, for the textfile collector or by HTTP"},
    {"doctor", "", 0, 0, OPTIONS(TEXT("--explain", "ERROR", NULL)), NULL, {0}, run_doctor, NULL,
     "what of machine, driver and daemon stands in the way, and what to do; ends with 1 if something fails"},
    {"support-bundle", "[FILE.tar]", 0, 1, OPTIONS(NUMBER("--patience", "SECONDS", NULL)), NULL, {0}, run_support_bundle, NULL,
     "what who is to help will ask for, in one archive: state, events, configuration, doctor and log, as far as you may see them"},
    {"bench", "smem", 1, 1, OPTIONS(NUMBER("--size", "N", NULL)), NULL, {0}, run_bench, NULL,
     "what shared memory gains a matmul on this GPU, step by step: naive, tiled, padded, fast"},
    {"config", "", 0, 0, NULL, "hbm.config", {0}, run_call, show_config,
     "the effective configuration and where each value came from"},
    {"rpc", "METHOD [JSON]", 1, 2, NULL, NULL, {0}, run_rpc, NULL, "call any method; prints its result as JSON"},
    {"complete", "-- WORD...", 0, CLI_WORDS_MAX, NULL, NULL, {0}, run_complete, NULL,
     "what may stand in place of the last word of a command line, for the shells' completion"},
    {"help", "[VERB]", 0, 1, NULL, NULL, {0}, run_help, NULL, "this text, or everything about a verb"},
};
/* clang-format on */

const struct verb *verb_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (!strcmp(verbs[i].name, name))
            return &verbs[i];
    return NULL;
}

const struct verb *verb_next(const struct verb *verb)
{
    const struct verb *next = verb ? verb + 1 : verbs;

    return next < verbs + sizeof(verbs) / sizeof(verbs[0]) ? next : NULL;
}
