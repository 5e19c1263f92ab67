#include "client/ctl/duplicates.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "client/ctl/cell.h"
#include "client/ctl/member.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"

#define SMALLEST (64 << 10) /* of loose buffers: sharing less is not worth a word */
#define COMPARED 64u        /* hashes at most */
#define NAMED 6u            /* in a sentence */

/* What may be a copy of another: a model, judged by its largest buffer, or a loose buffer. */
struct item {
    char *key;        /* that copies share: a model's layout, a buffer's dtype and shape */
    char *holder;     /* who has it: the model's name, or a pid */
    const cJSON *row; /* whose bytes are compared */
    double bytes;     /* of all of it */
    char hash[24];    /* "": not compared */
    bool meant, model;
};

struct items {
    struct item *all;
    size_t n;
};

static void items_clear(struct items *items)
{
    for (size_t i = 0; i < items->n; i++) {
        free(items->all[i].key);
        free(items->all[i].holder);
    }
    free(items->all);
    *items = (struct items){0};
}

/* Takes key and holder. */
static void add(struct items *items, char *key, char *holder, const cJSON *row, double bytes, bool model)
{
    struct item *grown = reallocarray(items->all, items->n + 1, sizeof(*grown));

    if (!grown)
        out_of_memory();
    items->all = grown;
    items->all[items->n++] =
        (struct item){.key = key, .holder = holder, .row = row, .bytes = bytes, .model = model};
}

/* ---- What may be a copy ---- */

static void add_models(struct items *items, const cJSON *models, const cJSON *buffers, const char *device)
{
    const cJSON *model, *row;

    cJSON_ArrayForEach(model, models)
    {
        const cJSON *largest = NULL;
        if (strcmp(text_of(model, "device"), device) || strcmp(text_of(model, "state"), "sealed"))
            continue;
        cJSON_ArrayForEach(row, buffers) if (is_its_model(model, row) &&
                                             (!largest || number(row, "size") > number(largest, "size"))) largest =
            row;
        if (largest)
            add(items, must_text("layout %s", text_of(model, "layout_hash")),
                must_text("%s", text_of(model, "name")), largest, number(model, "bytes"), true);
    }
}

/* The pid that alone leases it; 0: none, or several. */
static double only_pid(const cJSON *row)
{
    const cJSON *lease;
    double pid = 0;

    cJSON_ArrayForEach(lease, member(row, "leases"))
    {
        if (pid > 0 && number(lease, "pid") != pid)
            return 0;
        pid = number(lease, "pid");
    }
    return pid;
}

static void add_loose(struct items *items, const cJSON *buffers, const char *device)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, buffers)
    {
        double pid = only_pid(row);
        if (*text_of(row, "model") || !(pid > 0) || number(row, "size") < SMALLEST ||
            strcmp(text_of(row, "device"), device))
            continue;
        _cleanup_free_ char *shape = cell_shape(member(row, "shape"));
        add(items, must_text("%s %s of %.0f", text_of(row, "dtype"), shape, number(row, "size")),
            must_text("%.0f", pid), row, number(row, "size"), false);
    }
}

static int by_key(const void *a, const void *b)
{
    const struct item *one = a, *other = b;
    int order = strcmp(one->key, other->key);

    return order ? order : strcmp(one->hash, other->hash);
}

static size_t end_of(const struct items *items, size_t from, bool same_hash)
{
    size_t end = from + 1;

    while (end < items->n && !strcmp(items->all[end].key, items->all[from].key) &&
           (!same_hash || !strcmp(items->all[end].hash, items->all[from].hash)))
        end++;
    return end;
}

static bool have_many_holders(const struct items *items, size_t from, size_t end)
{
    for (size_t i = from + 1; i < end; i++)
        if (strcmp(items->all[i].holder, items->all[from].holder))
            return true;
    return false;
}

/* ---- Whether it is ---- */

static bool is_meant(const struct item *item, const cJSON *selected)
{
    const cJSON *row;

    if (!selected)
        return true;
    cJSON_ArrayForEach(row, selected)
    {
        if (!strcmp(text_of(row, "id"), text_of(item->row, "id")))
            return true;
        if (item->model && !strcmp(text_of(row, "model"), text_of(item->row, "model")) &&
            number(row, "owner") == number(item->row, "owner"))
            return true;
    }
    return false;
}

/* Memory that nobody has written yet is no copy of anything. */
static void hash_of_zeros(double size, char hash[24])
{
    static const char zeros[1 << 16];
    XXH3_state_t *state = XXH3_createState();

    if (!state)
        out_of_memory();
    XXH3_64bits_reset(state);
    for (uint64_t left = (uint64_t)size, part; left; left -= part) {
        part = left < sizeof(zeros) ? left : sizeof(zeros);
        XXH3_64bits_update(state, zeros, part);
    }
    snprintf(hash, 24, "%016" PRIx64, (uint64_t)XXH3_64bits_digest(state));
    XXH3_freeState(state);
}

/* What is off the device would have to be read over a link for that. */
static int hash(struct rpc *rpc, struct item *item, const char *zeros)
{
    _cleanup_json_ cJSON *rows = NULL;
    cJSON *params;

    if (strcmp(text_of(item->row, "tier"), "device") || strcmp(text_of(item->row, "encoding"), "raw"))
        return 0;
    params = cJSON_CreateObject();
    _cleanup_free_ char *sel = must_text("id:%s", text_of(item->row, "id"));
    cJSON_AddStringToObject(params, "sel", sel);
    int status = rpc_call(rpc, "hbm.hash", params, &rows);
    if (!status)
        snprintf(item->hash, sizeof(item->hash), "%s", text_of(rows->child, "hash"));
    item->meant = status || strcmp(item->hash, zeros);
    return status;
}

static int compare(struct rpc *rpc, struct items *items, const cJSON *selected)
{
    unsigned n = 0;
    int status = 0;

    for (size_t from = 0, end; !status && from < items->n; from = end) {
        char zeros[24];
        bool meant = false;
        end = end_of(items, from, false);
        if (!have_many_holders(items, from, end))
            continue;
        for (size_t i = from; !meant && i < end; i++)
            meant = is_meant(&items->all[i], selected);
        if (!meant)
            continue;
        hash_of_zeros(number(items->all[from].row, "size"), zeros);
        for (size_t i = from; !status && i < end; i++) {
            items->all[i].meant = true;
            if (n++ < COMPARED)
                status = hash(rpc, &items->all[i], zeros);
        }
    }
    return status;
}

/* ---- Told ---- */

static void append(char **text, char *more)
{
    char *whole = *text ? must_text("%s; %s", *text, more) : must_text("%s", more);

    free(more);
    free(*text);
    *text = whole;
}

/* "a, b and 4 more" */
static char *holders(const struct items *items, size_t from, size_t end)
{
    _cleanup_free_ char *text = NULL;

    for (size_t i = from; i < end && i < from + NAMED; i++) {
        char *longer = must_text("%s%s%s", text ? text : "", text ? ", " : "", items->all[i].holder);
        free(text);
        text = longer;
    }
    if (end > from + NAMED)
        return must_text("%s and %zu more", text, end - from - NAMED);
    return TAKE_PTR(text);
}

static void tell(const struct items *items, size_t from, size_t end, struct facts *facts)
{
    const struct item *item = &items->all[from];
    double bytes = item->bytes * (double)(end - from - 1);
    _cleanup_free_ char *names = holders(items, from, end);
    char size[UNITS_TEXT];

    units_bytes(number(item->row, "size"), size);
    if (*item->hash) {
        facts->copies += (double)(end - from);
        facts->copied_bytes += bytes;
        append(&facts->copied, item->model
                                   ? must_text("models %s, compared by their largest buffer (%s)", names, size)
                                   : must_text("%zu buffers of %s, pids %s", end - from, item->key, names));
    } else {
        facts->alike_bytes += end - from > 1 ? bytes : item->bytes;
        append(&facts->alike, must_text("%s %s, off the device, encoded, or one too many to look at",
                                        item->model ? "models" : "buffers of pids", names));
    }
}

int duplicates_find(struct rpc *rpc, const cJSON *buffers, const cJSON *models, const cJSON *selected,
                    const char *device, struct facts *facts)
{
    _cleanup_(items_clear) struct items items = {0};

    facts->copies = facts->copied_bytes = facts->alike_bytes = 0;
    add_models(&items, models, buffers, device);
    add_loose(&items, buffers, device);
    if (items.n)
        qsort(items.all, items.n, sizeof(items.all[0]), by_key);
    int status = compare(rpc, &items, selected);
    if (items.n)
        qsort(items.all, items.n, sizeof(items.all[0]), by_key);
    for (size_t from = 0, end; !status && from < items.n; from = end) {
        end = end_of(&items, from, true);
        if (items.all[from].meant && (!*items.all[from].hash || have_many_holders(&items, from, end)))
            tell(&items, from, end, facts);
    }
    return status;
}
