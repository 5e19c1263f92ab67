#include "daemon/core/offload_limit.h"

#include <stdio.h>
#include <string.h>

/* Measured on the H200s that this was made for: pinned copies over PCIe, and O_DIRECT reads of their SSD. They
 * stand in until something has come back here. Of a device that is host memory nothing is known before. */
#define HOST_GB_PER_S 55.2
#define DISK_GB_PER_S 1.3

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* What of the arena would go, its scales included. */
static uint64_t bytes_to_go(const struct arena *arena)
{
    uint64_t bytes = 0;

    if (arena_tier(arena) == HBM_TIER_HOST || arena_tier(arena) == HBM_TIER_DISK)
        return 0;
    list_for_each (node, &arena->buffers)
        bytes += list_entry(node, struct buffer, arena_node)->size;
    return bytes;
}

static double gb_per_s_from(const struct device *device, enum hbm_tier tier)
{
    double measured = device->links[tier == HBM_TIER_HOST ? JOB_LINK_HOST_TO_DEVICE : JOB_LINK_DISK_READ].measured;

    if (measured > 0)
        return measured / 1e9;
    return !device->is_cuda ? 0 : tier == HBM_TIER_HOST ? HOST_GB_PER_S : DISK_GB_PER_S;
}

/* How long the bytes take to come back, beside what the clients compute meanwhile, as far as either is known. */
static void add_reason(const struct device *device, const struct model *model, uint64_t bytes, enum hbm_tier tier,
                       char *detail)
{
    double rate = gb_per_s_from(device, tier);
    size_t length = strlen(detail);

    if (!rate)
        return;
    length += (size_t)snprintf(detail + length, HBM_DETAIL_MAX - length,
                               "; bringing back %.1f MiB takes about %.3g s at %.3g GB/s", mib(bytes),
                               (double)bytes / rate / 1e9, rate);
    if (length < HBM_DETAIL_MAX && model->lock_gaps.n)
        snprintf(detail + length, HBM_DETAIL_MAX - length, ", and %.3g ms lie between locks",
                 (double)model->lock_gaps.ms / (double)model->lock_gaps.n);
}

static bool is_within(const struct core *core, uint64_t away, uint64_t all)
{
    return (unsigned __int128)away * 100 <= (unsigned __int128)all * core->limits.offload_percent;
}

static int check_model(const struct core *core, const struct model *model, const struct device *device,
                       enum hbm_tier tier, char *detail)
{
    uint64_t bytes[HBM_PLACES], go = model->weight_goes;

    model_bytes(model, bytes);
    uint64_t away = bytes[HBM_TIER_HOST] + bytes[HBM_TIER_DISK], all = away + bytes[HBM_TIER_DEVICE] + bytes[HBM_TIER_PEER];
    if (!go || is_within(core, away + go, all))
        return 0;
    snprintf(detail, HBM_DETAIL_MAX,
             "model %.60s has %.1f MiB, %.1f MiB are offloaded and %.1f MiB would go: "
             "%.1f %% where offload_limit is %u %%",
             model->name, mib(all), mib(away), mib(go), 100.0 * (double)(away + go) / (double)all,
             core->limits.offload_percent);
    add_reason(device, model, away + go, tier, detail);
    return HBM_E_OFFLOAD_LIMIT;
}

int offload_limit_check_window(const struct core *core, const struct model *model, struct arena *const *arenas,
                               uint32_t stay, char *detail)
{
    uint32_t n = model->n_arenas;
    uint64_t all = 0, here = 0, least = UINT64_MAX;

    if (stay >= n)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        all += extent_raw_size(arenas[i]->extent);
    for (uint32_t i = 0; i < n + stay; i++) {
        here += extent_raw_size(arenas[i % n]->extent);
        if (i < stay)
            continue;
        here -= extent_raw_size(arenas[(i - stay) % n]->extent);
        least = here < least ? here : least;
    }
    if (is_within(core, all - least, all))
        return 0;
    snprintf(detail, HBM_DETAIL_MAX,
             "a window of %u of its %u groups has up to %.1f of model %.60s's %.1f MiB away: "
             "%.1f %% where offload_limit is %u %%",
             stay, n, mib(all - least), model->name, mib(all), 100.0 * (double)(all - least) / (double)all,
             core->limits.offload_percent);
    add_reason(arenas[0]->device, model, all - least, HBM_TIER_HOST, detail);
    return HBM_E_OFFLOAD_LIMIT;
}

int offload_limit_check(struct core *core, const struct arenas *arenas, enum hbm_tier tier, char *detail)
{
    uint64_t counted = ++core->visits, checked = ++core->visits;

    /* Each arena and each of their models once: there may be thousands of both. */
    for (size_t i = 0; i < arenas->n; i++) {
        struct model *model = arenas->at[i]->weighs_for;
        if (!model)
            continue;
        if (model->visit != counted)
            model->weight_goes = 0;
        model->visit = counted;
        model->weight_goes += bytes_to_go(arenas->at[i]);
    }
    for (size_t i = 0; i < arenas->n; i++) {
        struct model *model = arenas->at[i]->weighs_for;
        if (!model || model->visit == checked)
            continue;
        model->visit = checked;
        int error = check_model(core, model, arenas->at[0]->device, tier, detail);
        if (error)
            return error;
    }
    return 0;
}
