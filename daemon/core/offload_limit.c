#include "daemon/core/offload_limit.h"

#include <inttypes.h>
#include <stdio.h>

/* Measured on the H200s that this was made for: pinned copies over PCIe, and O_DIRECT reads of their SSD.
 * Of a device that is host memory nothing is known. */
#define HOST_GB_PER_S 55.2
#define DISK_GB_PER_S 1.3

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static uint64_t bytes_to_go(const struct model *model, const struct arenas *arenas)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < arenas->n; i++) {
        if (arena_tier(arenas->at[i]) != HBM_TIER_DEVICE)
            continue;
        list_for_each (node, &arenas->at[i]->buffers) {
            const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
            if (buffer->model == model || (buffer->parent && buffer->parent->model == model))
                bytes += buffer->size;
        }
    }
    return bytes;
}

static int check_model(const struct core *core, const struct model *model, const struct arenas *arenas,
                       enum hbm_tier tier, char *detail)
{
    uint64_t bytes[HBM_TIERS], go = bytes_to_go(model, arenas);

    model_bytes(model, bytes);
    uint64_t away = bytes[HBM_TIER_HOST] + bytes[HBM_TIER_DISK], all = away + bytes[HBM_TIER_DEVICE];
    if (!go || (unsigned __int128)(away + go) * 100 <= (unsigned __int128)all * core->limits.offload_percent)
        return 0;
    int length = snprintf(detail, HBM_DETAIL_MAX,
                          "model %.60s has %.1f MiB, %.1f MiB are offloaded and %.1f MiB would go: "
                          "%.1f %% where offload_limit is %u %%",
                          model->name, mib(all), mib(away), mib(go), 100.0 * (double)(away + go) / (double)all,
                          core->limits.offload_percent);
    double rate = tier == HBM_TIER_HOST ? HOST_GB_PER_S : DISK_GB_PER_S;
    if (arenas->at[0]->device->is_cuda)
        snprintf(detail + length, HBM_DETAIL_MAX - (size_t)length,
                 "; bringing back the %.1f MiB takes about %.3g s at %.3g GB/s", mib(away + go),
                 (double)(away + go) / rate / 1e9, rate);
    return HBM_E_OFFLOAD_LIMIT;
}

int offload_limit_check(struct core *core, const struct arenas *arenas, enum hbm_tier tier, char *detail)
{
    list_for_each (node, &core->models) {
        int error = check_model(core, list_entry(node, struct model, node), arenas, tier, detail);
        if (error)
            return error;
    }
    return 0;
}
