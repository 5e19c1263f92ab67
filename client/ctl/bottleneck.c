/* The tree: sharing, capacity, bandwidth, latency. Each branch is a function of a bottleneck's, and one row of
 * branches.def. */
#include "client/ctl/bottleneck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/report.h"
#include "client/ctl/units.h"

#define REAL 0.01          /* of the time: what costs less is none */
#define MANY 64            /* attaches: fewer are no pattern */
#define SLACK 2            /* a pass of so many times what reading its bytes takes waits for something else */
#define OTHERS 0.1         /* of the device: contexts alone take less */
#define FIXED 0.1          /* of a move's time: what its grain may leave to what does not depend on its size */
#define AHEAD 3            /* groups of a window: one in use, two on their way */
#define INT8_SHARE 1.03125 /* bytes an element by int8 with a scale for 128 */

#define BYTES(n) units_bytes((n), (char[UNITS_TEXT]){0})
#define TIME(n) units_seconds((n), (char[UNITS_TEXT]){0})
#define RATE(n) units_rate((n), (char[UNITS_TEXT]){0})
#define NUMBER(n) units_number((n), (char[UNITS_TEXT]){0})

#define MEASURE "run hbmctl advise --measure"

struct tree {
    const struct facts *facts;
    const char *sel;
    struct remarks *remarks;
};

/* ---- Remarks ---- */

static const struct {
    const char *bottleneck, *strategy;
} branches[BRANCHES] = {
#define BRANCH(name, bottleneck, strategy) [BRANCH_##name] = {bottleneck, strategy},
#include "client/ctl/branches.def"
#undef BRANCH
};

static struct remark *say(struct tree *tree, enum branch branch)
{
    struct remark *remark = &tree->remarks->all[tree->remarks->n++];

    *remark = (struct remark){branch,
                              branches[branch].bottleneck,
                              branches[branch].strategy,
                              NULL,
                              NULL,
                              NULL,
                              NULL,
                              NULL,
                              (double)NAN,
                              (double)NAN};
    return remark;
}

static void promise(const struct tree *tree, struct remark *remark, const char *metric, double predicted)
{
    remark->metric = metric;
    remark->before = gain_now(tree->facts, metric);
    remark->predicted = predicted;
}

void remarks_clear(struct remarks *remarks)
{
    for (unsigned i = 0; i < remarks->n; i++) {
        free(remarks->all[i].why);
        free(remarks->all[i].gain);
        free(remarks->all[i].todo);
        free(remarks->all[i].unknown);
    }
    remarks->n = 0;
}

/* ---- Sharing ---- */

static void judge_sharing(struct tree *tree)
{
    const struct facts *f = tree->facts;

    if (f->copied_bytes > 0) {
        struct remark *remark = say(tree, BRANCH_SHARE);
        remark->why = must_text("the same bytes are held more than once: %s; one of each would save %s", f->copied,
                                BYTES(f->copied_bytes));
        if (isnan(f->attach_seconds))
            remark->gain = must_text("%s less on the device", BYTES(f->copied_bytes));
        else
            remark->gain = must_text("%s less on the device; whoever comes next attaches in %s a group",
                                     BYTES(f->copied_bytes), TIME(f->attach_seconds));
        if (isnan(f->attach_seconds))
            remark->unknown = must_text("how long an attach takes here; " MEASURE);
        remark->todo = must_text("publish it once (hbmctl load FILE --as MODEL, hbm_publish_begin with HBM_WAIT), "
                                 "and attach that from each process");
        promise(tree, remark, "used_bytes", f->used_bytes - f->copied_bytes);
    }
    if (f->alike_bytes > 0) {
        struct remark *remark = say(tree, BRANCH_ALIKE);
        remark->why = must_text("%s looks as if it were held more than once: %s", BYTES(f->alike_bytes), f->alike);
        remark->unknown = must_text("whether the bytes are the same; run hbmctl hash on each");
    }
    if (f->is_gpu == 1 && f->others_bytes > OTHERS * f->capacity_bytes) {
        struct remark *remark = say(tree, BRANCH_OTHERS);
        remark->why =
            must_text("%s of the device is held by what does not go through the broker", BYTES(f->others_bytes));
        remark->unknown =
            must_text("whether these are weights that they could share; run hbmctl who, and ask whose they are");
    }
}

/* ---- Capacity ---- */

/* By fp16 of floats of 32 bits, by int8 of all floats. */
static void say_compress(struct tree *tree, double deficit)
{
    const struct facts *f = tree->facts;
    double half = f->f32_bytes / 2,
           int8 = f->f32_bytes * (1 - INT8_SHARE / 4) + f->f16_bytes * (1 - INT8_SHARE / 2);
    bool fp16 = half >= deficit;
    double saved = fp16 ? half : int8;

    if (!(saved > 0))
        return;
    struct remark *remark = say(tree, fp16 ? BRANCH_FP16 : BRANCH_INT8);
    remark->why =
        must_text("%s is needed and %s more than there is room for; of it %s are floats of 32 bits, %s of 16",
                  BYTES(f->needed_bytes), BYTES(deficit), BYTES(f->f32_bytes), BYTES(f->f16_bytes));
    remark->gain =
        must_text(saved >= deficit ? "%s instead of %s: it fits" : "%s instead of %s, which does not fit yet",
                  BYTES(f->needed_bytes - saved), BYTES(f->needed_bytes));
    remark->unknown = must_text("what it takes away of the quality; run hbmctl advise-codec %s", tree->sel);
    remark->todo = must_text("group by group, since it does not all fit beside its copy: hbmctl sleep, then for "
                             "each GROUP hbmctl restore group:GROUP and hbmctl compress group:GROUP --codec %s",
                             fp16 ? "fp16" : "int8 --granularity group:128 --min-sqnr 30");
    promise(tree, remark, "needed_bytes", f->needed_bytes - saved);
}

/* Bytes that a move should have at least, for what does not depend on them to be little of its time. */
static double least_grain(const struct facts *f)
{
    return f->lock_away_seconds * f->to_device_gb_per_s * 1e9 * (1 - FIXED) / FIXED;
}

static void say_offload(struct tree *tree, double deficit)
{
    const struct facts *f = tree->facts;
    double group = f->needed_bytes / fmax(f->groups, 1),
           grain = fmax(group, isnan(least_grain(f)) ? 0 : least_grain(f));
    double moved = fmin(deficit + AHEAD * grain, f->needed_bytes), away = deficit / f->needed_bytes;
    double link = moved / (f->to_device_gb_per_s * 1e9), limit = isnan(f->offload_limit) ? 1 : f->offload_limit;
    struct remark *remark = say(tree, away > limit ? BRANCH_TOO_MUCH : BRANCH_OFFLOAD);

    remark->why = must_text(
        "%s is needed, %s fits: %.0f %% of it has to be away at any time%s", BYTES(f->needed_bytes),
        BYTES(f->needed_bytes - deficit), ceil(away * 100),
        away > limit ? ", more than offload_limit lets go by hand: the link is many times slower than device memory"
                     : "");
    promise(tree, remark, "bounces_per_s", 0);
    if (isnan(link) || isnan(least_grain(f))) {
        remark->unknown = must_text("how fast the link is, and what a move takes however small it is; " MEASURE);
    } else {
        const char *fits =
            group >= least_grain(f) ? "a group at a time is enough" : "its groups are smaller: publish larger ones";
        remark->gain = must_text("an order over %s of it, %s or more at a time (its groups have %s, %s), takes %s "
                                 "of the link a pass%s%s%s",
                                 BYTES(moved), BYTES(least_grain(f)), BYTES(group), fits, TIME(link),
                                 isnan(f->pass_seconds) ? "" : ": a pass of ",
                                 isnan(f->pass_seconds) ? "" : TIME(f->pass_seconds),
                                 isnan(f->pass_seconds)    ? ""
                                 : link <= f->pass_seconds ? " hides it"
                                                           : " does not hide it");
        if (isnan(f->pass_seconds))
            remark->unknown =
                must_text("whether a pass over it computes for longer than that; say so with --pass SECONDS");
    }
    remark->todo = must_text("hbm_model_order over these groups with depth %d, and hbm_model_window%s", AHEAD - 1,
                             away > limit ? ", once what is left over is less" : "");
}

static void judge_capacity(struct tree *tree)
{
    const struct facts *f = tree->facts;
    double room = fmax(0, f->capacity_bytes - f->taken_bytes), deficit = f->needed_bytes - room;

    if (deficit > 0 && f->windowed == 1 && f->bounces == 0)
        return; /* its share is away, as it is to be: what that costs, locks wait */
    if (deficit > 0) {
        say_compress(tree, deficit);
        say_offload(tree, deficit);
    } else if (f->bounces > 0 || f->refused > 0) {
        struct remark *remark = say(tree, BRANCH_FITS_NOW);
        remark->why = must_text("%s groups were back soon after they had gone for want of room, and %s requests "
                                "were refused for it, in %s; what is leased now, %s, fits into %s",
                                NUMBER(f->bounces), NUMBER(f->refused), TIME(f->uptime_seconds),
                                BYTES(f->needed_bytes), BYTES(room));
        remark->unknown = must_text(
            "whether that goes on; keep this with --json in a file, and run hbmctl advise --since FILE later");
    }
}

/* ---- Bandwidth ---- */

/* The share of the time that locks wait becomes that times `ratio`. */
static void promise_waits(const struct tree *tree, struct remark *remark, double ratio)
{
    promise(tree, remark, "lock_wait_share", tree->facts->lock_wait_seconds / tree->facts->uptime_seconds * ratio);
}

static void say_park(struct tree *tree)
{
    const struct facts *f = tree->facts;
    bool floats = f->f32_bytes >= f->f16_bytes;
    double raw = f->to_device_gb_per_s, back = floats ? f->back_fp16_gb_per_s : f->back_lossless_gb_per_s;
    bool parks = f->parks_bytes >= f->needed_bytes / 2,
         pays = !parks && back > raw * 1.05 && f->f32_bytes + f->f16_bytes > 0;
    enum branch branch = !pays ? BRANCH_LINK : floats ? BRANCH_PARK : BRANCH_LOSSLESS;
    struct remark *remark = say(tree, branch);

    remark->why = must_text("%s locks waited for %s on average; a group of %s takes the link %s by itself",
                            NUMBER(f->lock_waits), TIME(f->lock_wait_seconds / f->lock_waits),
                            BYTES(f->needed_bytes / fmax(f->groups, 1)),
                            TIME(f->needed_bytes / fmax(f->groups, 1) / raw / 1e9));
    if (!pays) {
        remark->todo = must_text("a wider window, a smaller share away, or what else is on the device elsewhere");
        if (isnan(back) && !parks)
            remark->unknown = must_text("whether what is encoded comes back faster; " MEASURE);
        return;
    }
    if (floats && !isnan(f->back_int8_gb_per_s))
        remark->gain = must_text(
            "comes back at %s by fp16 and %s by int8 instead of %s: waits of %s in %s become %s and %s", RATE(back),
            RATE(f->back_int8_gb_per_s), RATE(raw), TIME(f->lock_wait_seconds), TIME(f->uptime_seconds),
            TIME(f->lock_wait_seconds * raw / back), TIME(f->lock_wait_seconds * raw / f->back_int8_gb_per_s));
    else
        remark->gain =
            must_text("comes back at %s instead of %s: waits of %s in %s become %s", RATE(back), RATE(raw),
                      TIME(f->lock_wait_seconds), TIME(f->uptime_seconds), TIME(f->lock_wait_seconds * raw / back));
    if (!floats)
        remark->unknown = must_text("how well these tensors pack: the rate is that of normal numbers; run hbmctl "
                                    "compress %s --codec bf16-lossless --mode park, and look at --since",
                                    tree->sel);
    remark->todo =
        must_text("hbmctl compress %s --codec %s --mode park", tree->sel, floats ? "fp16" : "bf16-lossless");
    promise_waits(tree, remark, raw / back);
}

static void say_order(struct tree *tree)
{
    const struct facts *f = tree->facts;
    double link = f->lock_wait_seconds / f->lock_waits * fmax(f->groups, 1);
    struct remark *remark = say(tree, BRANCH_ORDER);

    remark->why = must_text(
        "%s locks waited, %s in all, and no order of use is declared: nothing is sent before it is asked for",
        NUMBER(f->lock_waits), TIME(f->lock_wait_seconds));
    remark->todo = must_text("hbm_model_order(model, groups, n, %d)", AHEAD - 1);
    if (isnan(f->pass_seconds)) {
        remark->unknown = must_text("whether a pass over it computes for longer than the %s that all its groups "
                                    "take to come; say so with --pass SECONDS",
                                    TIME(link));
        promise_waits(tree, remark, (double)NAN);
        return;
    }
    double left = fmax(0, 1 - f->pass_seconds / link);
    remark->gain = must_text("a pass that computes for %s hides so much of the %s that its groups take to come: "
                             "%.0f %% of the waiting is left",
                             TIME(f->pass_seconds), TIME(link), left * 100);
    promise_waits(tree, remark, left);
}

static void say_grain(struct tree *tree, double fixed, double link)
{
    const struct facts *f = tree->facts;
    double group = f->needed_bytes / fmax(f->groups, 1), grain = least_grain(f);
    double ratio = (fixed * group / grain + link) / (fixed + link);
    struct remark *remark = say(tree, BRANCH_GRAIN);

    remark->why = must_text(
        "%s locks waited for %s on average; of that a group of %s takes the link %s, and %s go however small it is",
        NUMBER(f->lock_waits), TIME(f->lock_wait_seconds / f->lock_waits), BYTES(group), TIME(link), TIME(fixed));
    remark->gain = must_text("groups of %s: %.0f %% of the waiting is left", BYTES(grain), ratio * 100);
    remark->todo = must_text("publish it in groups of several layers, or tensors that are used together in one");
    promise_waits(tree, remark, ratio);
}

static void judge_waits(struct tree *tree)
{
    const struct facts *f = tree->facts;
    double link = f->needed_bytes / fmax(f->groups, 1) / (f->to_device_gb_per_s * 1e9);

    if (!(f->lock_waits > 0) || !(f->lock_wait_seconds >= REAL * f->uptime_seconds))
        return;
    if (isnan(link) || isnan(f->lock_away_seconds)) {
        struct remark *remark = say(tree, BRANCH_WAITS);
        remark->why = must_text("%s locks found memory away and took %s, %s of %s", NUMBER(f->lock_waits),
                                TIME(f->lock_wait_seconds / f->lock_waits), TIME(f->lock_wait_seconds),
                                TIME(f->uptime_seconds));
        remark->unknown =
            must_text("how much of that is the link's, and how much goes however little moves; " MEASURE);
        return;
    }
    if (f->ordered == 0)
        say_order(tree);
    if (link < f->lock_away_seconds)
        say_grain(tree, f->lock_away_seconds, link);
    else
        say_park(tree);
}

/* Kernels that have encoded weights, and kernels that do not get from device memory what it gives. */
static void judge_kernels(struct tree *tree)
{
    const struct facts *f = tree->facts;
    double read = f->needed_bytes / (f->memory_gb_per_s * 1e9), ladder = f->fast_tflops / f->naive_tflops;

    if (f->is_gpu == 1 && f->encoded_bytes > 0) {
        struct remark *remark = say(tree, BRANCH_TILES);
        remark->why = must_text(
            "%s lies encoded on the device; a decoded copy beside it takes %s in every process that makes one",
            BYTES(f->encoded_bytes), BYTES(f->decoded_bytes));
        remark->gain = must_text("%s less on the device for each of these", BYTES(f->decoded_bytes));
        remark->todo = must_text("hbm_tile.cuh: tile by tile into shared memory; hbm_matmul.h has kernels that do");
        remark->unknown =
            must_text("whether anybody makes a copy, and how fast your kernel is; run hbmctl bench smem beside it");
    }
    if (isnan(f->pass_seconds) || !(f->needed_bytes > 0))
        return;
    if (isnan(read)) {
        struct remark *remark = say(tree, BRANCH_MEMORY);
        remark->why = must_text("a pass takes %s over %s", TIME(f->pass_seconds), BYTES(f->needed_bytes));
        remark->unknown = must_text("how long device memory takes for that; %s", MEASURE);
    } else if (f->pass_seconds <= SLACK * read) {
        struct remark *remark = say(tree, BRANCH_MEMORY);
        double saved = f->f32_bytes / 2 + f->f16_bytes * (1 - INT8_SHARE / 2);
        remark->why =
            must_text("a pass takes %s, and reading its %s at the %s of a copy %s: it waits for device memory",
                      TIME(f->pass_seconds), BYTES(f->needed_bytes), RATE(f->memory_gb_per_s), TIME(read));
        remark->gain = must_text("%s in %s less to read: at best %s", f->f32_bytes > 0 ? "fp16" : "int8",
                                 BYTES(saved), TIME(f->pass_seconds * (1 - saved / f->needed_bytes)));
        remark->unknown = must_text(
            "how near a kernel of yours comes to that; run hbmctl bench smem, then hbmctl advise-codec %s",
            tree->sel);
        promise(tree, remark, "pass_seconds", f->pass_seconds * (1 - saved / f->needed_bytes));
    } else if (f->is_gpu == 1) {
        struct remark *remark = say(tree, BRANCH_KERNEL);
        remark->why =
            must_text("a pass takes %s, and reading its %s from device memory %s: something else holds it up",
                      TIME(f->pass_seconds), BYTES(f->needed_bytes), TIME(read));
        if (isnan(ladder)) {
            remark->unknown = must_text("what shared memory gains here, and what your kernels do; " MEASURE
                                        ", where hbm-bench-smem is installed");
        } else {
            remark->gain = must_text("where its kernels have every operand from device memory: %.1f x by tiles, "
                                     "%.1f x without bank conflicts, %.1f x by registers too; at best %s",
                                     f->tiled_tflops / f->naive_tflops, f->padded_tflops / f->naive_tflops, ladder,
                                     TIME(fmax(read, f->pass_seconds / ladder)));
            remark->unknown = must_text("whether they do; run ncu on one of them");
        }
        promise(tree, remark, "pass_seconds", fmax(read, f->pass_seconds / ladder));
        remark->todo = must_text("hbm_tile.cuh and hbm_matmul.h have tiled kernels to start from");
    }
}

/* ---- Latency ---- */

static void judge_attaches(struct tree *tree)
{
    const struct facts *f = tree->facts;
    double mean = f->attached_bytes / f->attaches;

    if (!(f->attaches >= MANY) || !(f->loose_bytes > 0))
        return;
    if (isnan(f->attach_seconds) || isnan(f->to_device_gb_per_s)) {
        struct remark *remark = say(tree, BRANCH_ATTACHES);
        remark->why = must_text("%s attaches in %s, of %s on average", NUMBER(f->attaches), TIME(f->uptime_seconds),
                                BYTES(mean));
        remark->unknown = must_text("how long one takes here; " MEASURE);
        return;
    }
    double cost = f->attaches * f->attach_seconds, link = mean / (f->to_device_gb_per_s * 1e9);
    if (cost < REAL * f->uptime_seconds || link >= f->attach_seconds)
        return;
    struct remark *remark = say(tree, BRANCH_ATTACH);
    remark->why = must_text(
        "%s attaches in %s, of %s on average: one takes %s, longer than those bytes take over the link (%s)",
        NUMBER(f->attaches), TIME(f->uptime_seconds), BYTES(mean), TIME(f->attach_seconds), TIME(link));
    remark->gain = must_text("%s of attaching become %s a process, for all of the %s that lie loose", TIME(cost),
                             TIME(f->attach_seconds), BYTES(f->loose_bytes));
    remark->todo = must_text("publish them as a model of few groups (hbm_publish_begin), and attach that");
    promise(tree, remark, "bytes_an_attach", f->loose_bytes);
}

/* ---- */

static void say_nothing(struct tree *tree)
{
    const struct facts *f = tree->facts;
    struct remark *remark = say(tree, BRANCH_NOTHING);

    remark->why = must_text(
        "%s is needed where %s fits%s; locks waited for %s of %s; %s bounces; %s attaches; nothing is held twice",
        BYTES(f->needed_bytes), BYTES(f->capacity_bytes - f->taken_bytes),
        f->windowed == 1 ? ", and a window has the rest away" : "", TIME(f->lock_wait_seconds),
        TIME(f->uptime_seconds), NUMBER(f->bounces), NUMBER(f->attaches));
    if (isnan(f->pass_seconds))
        remark->unknown = must_text("what kernels wait for: a broker does not see them; with --pass SECONDS, how "
                                    "long a pass over it takes, it says more");
}

void bottlenecks_find(const struct facts *facts, const char *sel, struct remarks *remarks)
{
    struct tree tree = {facts, sel, remarks};

    *remarks = (struct remarks){0};
    judge_sharing(&tree);
    judge_capacity(&tree);
    judge_waits(&tree);
    judge_kernels(&tree);
    judge_attaches(&tree);
    if (!remarks->n)
        say_nothing(&tree);
}

double gain_now(const struct facts *f, const char *metric)
{
    const struct {
        const char *name;
        double now;
    } metrics[] = {{"used_bytes", f->used_bytes},
                   {"needed_bytes", f->needed_bytes},
                   {"bounces_per_s", f->bounces / f->uptime_seconds},
                   {"lock_wait_share", f->lock_wait_seconds / f->uptime_seconds},
                   {"bytes_an_attach", f->attached_bytes / f->attaches},
                   {"pass_seconds", f->pass_seconds}};

    for (unsigned i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++)
        if (!strcmp(metrics[i].name, metric))
            return metrics[i].now;
    return (double)NAN;
}
