/* Which kernel, with which types; what is refused, and why. */
#include "kernels/matmul/hbm_matmul.h"

#include <cstdarg>
#include <cstdio>

#include "kernels/matmul/kernels.h"

/* Divisible by whatever divides chunks: all columns share. */
#define ALL_COLUMNS 0x80000000u

static int refuse(char *why, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(char *why, size_t size, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (why)
        vsnprintf(why, size, format, arguments);
    va_end(arguments);
    return cudaErrorInvalidValue;
}

static int shared_bytes(int *usual, int *most)
{
    int device;
    cudaError_t error = cudaGetDevice(&device);

    if (!error)
        error = cudaDeviceGetAttribute(usual, cudaDevAttrMaxSharedMemoryPerBlock, device);
    return error ? error : cudaDeviceGetAttribute(most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

static int choose_tile(const struct hbm_matmul *job, unsigned *tile, char *why, size_t size)
{
    bool padded = job->kernel == HBM_MATMUL_PADDED;
    int usual, most, error = shared_bytes(&usual, &most);

    if (error)
        return error;
    *tile = job->tile;
    for (unsigned each = 128; each >= 16 && !*tile; each /= 2)
        if (hbm_matmul_tile_bytes(each, padded) <= (size_t)most)
            *tile = each;
    if (*tile != 16 && *tile != 32 && *tile != 64 && *tile != 128)
        return refuse(why, size, "a tile has 16, 32, 64 or 128 elements a side, not %u", *tile);
    if (hbm_matmul_tile_bytes(*tile, padded) > (size_t)most)
        return refuse(
            why, size,
            "tiles of %u x %u take %zu bytes of shared memory, a block here has %d, at most %d; take a smaller one",
            *tile, *tile, hbm_matmul_tile_bytes(*tile, padded), usual, most);
    return 0;
}

/* The columns of sums that a block has, in F16 and BF16: as many as the device can. */
static int choose_columns(const struct hbm_matmul *job, unsigned *columns, char *why, size_t size)
{
    int usual, most, error = shared_bytes(&usual, &most);
    bool here = false;

    if (job->tile && job->tile != 128 && job->tile != MATMUL_WIDE)
        return refuse(why, size, "HBM_MATMUL_FAST of F16 and BF16 has tiles of 128 or %u columns, not %u",
                      MATMUL_WIDE, job->tile);
    if (!error && job->tile != 128)
        error = matmul_wide_here(&here);
    if (error)
        return error;
    here = here && matmul_wide_bytes() <= (size_t)most;
    if (job->tile == MATMUL_WIDE && !here)
        return refuse(
            why, size,
            "tiles of 128 x %u take %zu bytes of shared memory and tensor cores by warp group, a block here "
            "has %d, at most %d; take 128",
            MATMUL_WIDE, matmul_wide_bytes(), usual, most);
    *columns = here ? MATMUL_WIDE : 128;
    return 0;
}

/* hbmd's layout of scales as a matrix has them. */
static void place_scales(const struct hbm_matmul *job, struct hbm_weights *w)
{
    const struct hbm_encoding *e = &job->encoding;

    w->scales_a_row = 0;
    w->group = ALL_COLUMNS;
    w->scale = e->codec == HBM_CODEC_RAW ? NULL : job->scale;
    if (e->granularity == HBM_PER_CHANNEL && e->axis == 0)
        w->scales_a_row = 1;
    else if (e->granularity == HBM_PER_CHANNEL)
        w->group = 1;
    else if (e->granularity == HBM_PER_GROUP)
        w->group = e->group, w->scales_a_row = (job->k + e->group - 1) / e->group;
}

static int check(const struct hbm_matmul *job, char *why, size_t size)
{
    const struct hbm_encoding *e = &job->encoding;
    bool coded = e->codec == HBM_CODEC_INT8 || e->codec == HBM_CODEC_FP8_E4M3 || e->codec == HBM_CODEC_FP8_E5M2 ||
                 e->codec == HBM_CODEC_INT4;

    if (!job->x || !job->w || !job->y)
        return refuse(why, size, "x, w or y is NULL");
    if (job->dtype != HBM_F32 && job->dtype != HBM_F16 && job->dtype != HBM_BF16)
        return refuse(why, size, "x and y are F32, F16 or BF16");
    if (!job->m || !job->n || !job->k || job->m >= ALL_COLUMNS || job->n >= ALL_COLUMNS || job->k >= ALL_COLUMNS)
        return refuse(why, size, "m, n and k are between 1 and 2^31 - 1, not %u, %u and %u", job->m, job->n,
                      job->k);
    if (e->codec != HBM_CODEC_RAW && !coded)
        return refuse(why, size, "weights are raw, int8, fp8 or int4; decompress others first");
    if (coded && !job->scale)
        return refuse(why, size, "encoded weights need their scales");
    if (coded && (e->granularity > HBM_PER_GROUP || (e->granularity == HBM_PER_GROUP && !e->group) || e->axis > 1))
        return refuse(why, size,
                      "weights have two dimensions: scales are per tensor, per channel 0 or 1, or per group");
    if (job->kernel > HBM_MATMUL_ROWS)
        return refuse(why, size, "kernel %u is none", job->kernel);
    if (job->kernel >= HBM_MATMUL_NAIVE && job->kernel <= HBM_MATMUL_PADDED && (job->dtype != HBM_F32 || coded))
        return refuse(why, size, "the steps below HBM_MATMUL_FAST are of F32, raw");
    if (job->kernel == HBM_MATMUL_ROWS && job->m > MATMUL_ROWS_MOST)
        return refuse(why, size, "HBM_MATMUL_ROWS takes up to %u rows of x, not %u", MATMUL_ROWS_MOST, job->m);
    return 0;
}

template <class X, class Store> static cudaError_t run(unsigned kernel, const matmul &job, cudaStream_t stream)
{
    return kernel == HBM_MATMUL_FAST ? matmul_fast<X, Store>(job, stream) : matmul_rows<X, Store>(job, stream);
}

template <class X>
static cudaError_t with_x(unsigned kernel, const matmul &job, unsigned codec, cudaStream_t stream)
{
    switch (codec) {
    case HBM_CODEC_INT8:
        return run<X, int8_t>(kernel, job, stream);
    case HBM_CODEC_FP8_E4M3:
        return run<X, __nv_fp8_e4m3>(kernel, job, stream);
    case HBM_CODEC_FP8_E5M2:
        return run<X, __nv_fp8_e5m2>(kernel, job, stream);
    case HBM_CODEC_INT4:
        return run<X, hbm_int4>(kernel, job, stream);
    default:
        return run<X, X>(kernel, job, stream);
    }
}

int hbm_matmul(const struct hbm_matmul *job, void *stream, char *why, size_t size)
{
    struct matmul inner = {
        {job->x, NULL, job->m, job->k, 0, ALL_COLUMNS}, {job->w, NULL, job->n, job->k, 0, ALL_COLUMNS}, job->y, 0};
    unsigned kernel = job->kernel;
    int error = check(job, why, size);

    if (!error && (kernel == HBM_MATMUL_TILED || kernel == HBM_MATMUL_PADDED))
        error = choose_tile(job, &inner.tile, why, size);
    if (kernel == HBM_MATMUL_AUTO)
        kernel = job->m <= MATMUL_ROWS_MOST ? HBM_MATMUL_ROWS : HBM_MATMUL_FAST;
    if (!error && kernel == HBM_MATMUL_FAST && job->dtype != HBM_F32)
        error = choose_columns(job, &inner.tile, why, size);
    if (error)
        return error;
    if (kernel == HBM_MATMUL_NAIVE)
        return matmul_naive(inner, (cudaStream_t)stream);
    if (kernel == HBM_MATMUL_TILED || kernel == HBM_MATMUL_PADDED)
        return matmul_tiled(inner, kernel == HBM_MATMUL_PADDED, (cudaStream_t)stream);
    place_scales(job, &inner.w);
    if (job->dtype == HBM_F32)
        return with_x<float>(kernel, inner, job->encoding.codec, (cudaStream_t)stream);
    if (job->dtype == HBM_F16)
        return with_x<__half>(kernel, inner, job->encoding.codec, (cudaStream_t)stream);
    return with_x<__nv_bfloat16>(kernel, inner, job->encoding.codec, (cudaStream_t)stream);
}
