/* Encoding and decoding in the host worker, of buffers by themselves and of packed arenas. */
#include <math.h>

#include "tests/unit/worker_fixture.h"

static struct job_code code_of(unsigned codec, uint64_t n)
{
    return (struct job_code){
        .data_offset = 256,
        .dims = {n},
        .rank = 1,
        .dtype = HBM_F32,
        .encoding = {.codec = (uint8_t)codec, .stored = (uint8_t)hbm_codec_stored_dtype(codec)}};
}

static void a_buffer_is_encoded_within_its_bounds_and_decoded_again(void **state)
{
    struct ask_extent raw = make(JOB_EXTENT_DEVICE, 4096), stored = make(JOB_EXTENT_HOST, 4096);
    struct job_encode_request encode = {
        .source = raw.extent, .target = stored.extent, .code = code_of(HBM_CODEC_INT8, 256)};
    struct job_decode_request decode = {.source = stored.extent, .target = raw.extent, .code = encode.code};
    int fds[] = {raw.fd, stored.fd}, back[] = {stored.fd, raw.fd};
    float *x = (float *)map(&raw);
    union job_reply reply;

    (void)state;
    for (int i = 0; i < 256; i++)
        x[i] = (float)(i - 128) / 64;
    encode.min_sqnr_db = 30;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0);
    const struct hbm_receipt *receipt = &reply.encode.receipt;
    assert_true(receipt->bytes_before == 1024 && receipt->bytes_after == 260 && receipt->elements == 256);
    assert_true(receipt->sqnr_db > 30 && receipt->max_abs_error < 0.02);
    memset(x, 0, 1024);
    expect(ask_job(&worker, JOB_DECODE, &decode, back, 2, &reply, NULL), 0);
    assert_true(fabsf(x[0] + 2) < 0.02f && fabsf(x[192] - 1) < 0.02f);
    x[0] = 1.999f; /* what was decoded would encode without any error */
    for (int i = 1; i < 256; i++)
        x[i] = (float)(i - 128) / 77;
    encode.min_sqnr_db = 300;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), HBM_E_QUALITY);
    assert_non_null(strstr(worker.detail, "300.00 dB"));
    encode.min_sqnr_db = 0, encode.max_error = 1e-9;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), HBM_E_QUALITY);
    munmap(x, 4096);
    drop(&raw), drop(&stored);
}

static void codes_that_do_not_fit_are_refused(void **state)
{
    struct ask_extent raw = make(JOB_EXTENT_DEVICE, 4096), stored = make(JOB_EXTENT_DEVICE, 4096),
                      disk = make(JOB_EXTENT_DISK, 4096);
    const struct job_encode_request good = {
        .source = raw.extent, .target = stored.extent, .code = code_of(HBM_CODEC_FP16, 64)};
    struct job_encode_request r;
    int fds[] = {raw.fd, stored.fd}, to_disk[] = {raw.fd, disk.fd};

    (void)state;
    expect(ask_job(&worker, JOB_ENCODE, &good, fds, 2, NULL, NULL), 0);
    r = good, r.code.dims[0] = 2000;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.code.data_offset = 128;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.code.raw_offset = UINT64_MAX - 255;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.code.dtype = HBM_I32;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    r = good, r.code.encoding.codec = 200;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    r = good, r.code.rank = 9;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    r = good, r.target = disk.extent;
    expect(ask_job(&worker, JOB_ENCODE, &r, to_disk, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    drop(&raw), drop(&stored), drop(&disk);
}

/* ---- What is observed ---- */

static void what_is_observed_is_counted_and_a_range_is_found_in_the_counts(void **state)
{
    struct ask_extent raw = make(JOB_EXTENT_DEVICE, 8192), stored = make(JOB_EXTENT_HOST, 8192);
    struct job_observe_request observe = {.extent = raw.extent, .offset = 256, .elements = 1000, .dtype = HBM_F32};
    struct job_encode_request encode = {.source = raw.extent, .target = stored.extent, .code = code_of(HBM_CODEC_INT8, 1000)};
    int fds[] = {raw.fd, stored.fd, -1};
    float *x = (float *)map(&raw) + 64;
    union job_reply reply;
    size_t size = 0;

    (void)state;
    for (int i = 0; i < 1000; i++)
        x[i] = (float)(i - 200) / 100;
    x[3] = NAN, x[4] = -INFINITY, x[5] = 90;
    expect(ask_job(&worker, JOB_OBSERVE, &observe, fds, 1, &reply, &fds[2]), 0);
    assert_true(reply.observe.finite == 998 && reply.observe.lo == -2 && reply.observe.hi == 90);
    uint64_t *bins = memfd_map_sealed(fds[2], JOB_OBSERVE_BYTES, &size), sum = 0;
    assert_true(bins && size == JOB_OBSERVE_BYTES);
    for (unsigned i = 0; i < JOB_OBSERVE_BINS; i++)
        sum += bins[i];
    assert_true(sum == 1000 && bins[0x7f80] == 1 && bins[0x3f80] == 2 && bins[0] == 1); /* 1 and -1 in one bin, 0 alone */
    munmap(bins, size);

    /* Of another buffer, which holds less than what was observed. */
    for (int i = 0; i < 1000; i++)
        x[i] = 1;
    encode.code.raw_offset = 256;
    encode.calibration = (struct job_calibration){
        .method = HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_PERCENTILE, .parameter = 99, .lo = -2, .hi = 90, .dtype = HBM_F32};
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), 0);
    const struct hbm_quality *quality = &reply.encode.quality;
    assert_true(quality->hi >= 7.89f && quality->hi < 7.89f * 1.01f && quality->lo == -quality->hi);
    assert_true(quality->method == (HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_PERCENTILE));
    encode.calibration.parameter = 100;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), 0);
    assert_true(quality->hi == 90); /* never beyond the largest that was seen */
    for (unsigned method = HBM_CALIBRATE_MSE; method <= HBM_CALIBRATE_ENTROPY; method++) {
        encode.calibration.method = HBM_CALIBRATE_OBSERVED | method;
        expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), 0);
        assert_true(quality->hi > 1 && quality->hi <= 90);
    }
    encode.calibration.method = HBM_CALIBRATE_OBSERVED;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0);
    assert_true(quality->hi == 90 && quality->lo == -90);

    /* An asymmetric one keeps its ends; in counts without signs it is found where there is but one, or signs do not matter. */
    encode.code.encoding.codec = HBM_CODEC_INT8_ASYM;
    encode.code.scale_offset = 2048;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0);
    assert_true(quality->hi == 90 && quality->lo == -2);
    encode.calibration.method = HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_ENTROPY;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), 0);
    assert_true(quality->hi > 1 && quality->hi < 90 && quality->lo <= -1 && quality->lo >= -2);
    for (unsigned method = HBM_CALIBRATE_PERCENTILE; method <= HBM_CALIBRATE_MSE; method++) {
        encode.calibration.method = HBM_CALIBRATE_OBSERVED | method, encode.calibration.parameter = 98;
        encode.calibration.lo = -2, encode.calibration.hi = 90;
        expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), HBM_E_UNSUPPORTED);
        encode.calibration.lo = 0;
        expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), 0);
        assert_true(quality->hi > 1 && quality->hi <= 90 && quality->lo == 0 && quality->method == encode.calibration.method);
        encode.calibration.lo = -90, encode.calibration.hi = 0;
        expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), 0);
        assert_true(quality->lo < -1 && quality->lo >= -90 && quality->hi == 0);
    }
    encode.code.encoding.codec = HBM_CODEC_INT8;
    encode.calibration.method = HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_GIVEN;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, &reply, NULL), HBM_E_UNSUPPORTED);
    close(fds[2]);
    munmap(x - 64, raw.extent.size);
    drop(&raw), drop(&stored);
}

static void what_cannot_be_observed_and_counts_that_are_none_are_refused(void **state)
{
    struct ask_extent raw = make(JOB_EXTENT_DEVICE, 4096), stored = make(JOB_EXTENT_DEVICE, 4096), disk = make(JOB_EXTENT_DISK, 4096);
    const struct job_observe_request good = {.extent = raw.extent, .elements = 1024, .dtype = HBM_F32};
    struct job_encode_request encode = {.source = raw.extent, .target = stored.extent, .code = code_of(HBM_CODEC_INT8, 64)};
    struct job_observe_request r;
    uint64_t *empty = calloc(JOB_OBSERVE_BINS, sizeof(*empty));
    int fds[] = {raw.fd, stored.fd, -1}, on_disk[] = {disk.fd}, counts = -1;

    (void)state;
    expect(ask_job(&worker, JOB_OBSERVE, &good, fds, 1, NULL, &counts), 0);
    close(counts);
    r = good, r.elements = 0;
    expect(ask_job(&worker, JOB_OBSERVE, &r, fds, 1, NULL, &counts), 0);
    close(counts);
    r = good, r.elements = 1025;
    expect(ask_job(&worker, JOB_OBSERVE, &r, fds, 1, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.elements = UINT64_MAX;
    expect(ask_job(&worker, JOB_OBSERVE, &r, fds, 1, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.offset = 4;
    expect(ask_job(&worker, JOB_OBSERVE, &r, fds, 1, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.dtype = HBM_I32;
    expect(ask_job(&worker, JOB_OBSERVE, &r, fds, 1, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.extent = disk.extent;
    expect(ask_job(&worker, JOB_OBSERVE, &r, on_disk, 1, NULL, NULL), HBM_E_BAD_REQUEST);

    encode.calibration = (struct job_calibration){.method = HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_MSE, .hi = 1, .dtype = HBM_F32};
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    fds[2] = memfd_sealed("bins", empty, JOB_OBSERVE_BYTES);
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, NULL, NULL), HBM_E_BAD_REQUEST);
    close(fds[2]);
    empty[0] = 1;
    fds[2] = memfd_sealed("bins", empty, JOB_OBSERVE_BYTES / 2);
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, NULL, NULL), HBM_E_BAD_REQUEST);
    encode.calibration.dtype = HBM_I8;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 3, NULL, NULL), HBM_E_BAD_REQUEST);
    close(fds[2]);
    free(empty);
    drop(&raw), drop(&stored), drop(&disk);
}

/* ---- Packing ---- */

/* An arena of three: floats for fp16 over more than one batch, raw bytes, rows for int8, cut as the owner would, with a
 * gap in one batch and a piece that is longer than one. */
enum { WIDE = 11 << 20, ODD = 70001, ROWS = 40, ROW = 700000, TAIL = 12345 };
#define WIDE_AT ((uint64_t)256)
#define BYTES_AT ((uint64_t)WIDE_AT + WIDE * 4)
#define ROWS_AT ((uint64_t)(BYTES_AT + ODD + 255) / 256 * 256)
#define TAIL_AT ((uint64_t)ROWS_AT + (uint64_t)ROWS * ROW * 4)
#define RAW_SIZE ((uint64_t)TAIL_AT + TAIL * 4)
#define BATCH (16 * MIB)

static struct job_piece halves(uint64_t from, uint64_t n, uint64_t at)
{
    return (struct job_piece){.raw_offset = WIDE_AT + from * 4,
                              .data_offset = at,
                              .dims = {1, 1, n},
                              .encoding = {.codec = HBM_CODEC_FP16, .stored = HBM_F16},
                              .dtype = HBM_F32};
}

static struct job_piece rows(uint64_t from, uint64_t n, uint64_t at)
{
    uint64_t data = n * ROW;

    return (struct job_piece){
        .raw_offset = ROWS_AT + from * ROW * 4,
        .data_offset = at,
        .scale_offset = (at + data + 255) / 256 * 256,
        .dims = {1, n, ROW},
        .encoding = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .axis = 1, .stored = HBM_I8},
        .dtype = HBM_F32,
        .receipt = 1};
}

struct packed {
    struct ask_extent raw, packed;
    struct job_piece pieces[6];
    int table;
};

static struct packed make_packed(unsigned kind)
{
    uint64_t halves_end = 2 * (uint64_t)WIDE, bytes_at = (halves_end + 255) / 256 * 256;
    struct packed p = {.raw = make(JOB_EXTENT_DEVICE, RAW_SIZE), .packed = make(kind, 6 * BATCH)};
    unsigned char *raw = map(&p.raw);
    float *x = (float *)(void *)(raw + WIDE_AT), *y = (float *)(void *)(raw + ROWS_AT);

    fill(raw, RAW_SIZE, 7);
    for (uint64_t i = 0; i < WIDE; i++)
        x[i] = (float)((i * 2654435761u) % 100003) / 37 - 1000;
    for (uint64_t i = 0; i < (uint64_t)ROWS * ROW + TAIL; i++)
        y[i] = (float)((i * 40503) % 9973) / 9973 * (float)(1 + i / ROW) - 1;
    munmap(raw, p.raw.extent.size);
    p.pieces[0] = halves(0, BATCH / 2, 0);
    p.pieces[1] = halves(BATCH / 2, WIDE - BATCH / 2, BATCH);
    p.pieces[2] = (struct job_piece){.raw_offset = BYTES_AT, .data_offset = bytes_at, .dims = {1, 1, ODD}};
    p.pieces[3] = rows(0, 15, 2 * BATCH);
    p.pieces[4] = rows(15, 25, 3 * BATCH); /* longer than a batch, so that it may go on into the next */
    p.pieces[5] = (struct job_piece){.raw_offset = TAIL_AT,
                                     .data_offset = 4 * BATCH + 3 * MIB,
                                     .dims = {1, 1, TAIL},
                                     .encoding = {.codec = HBM_CODEC_BF16, .stored = HBM_BF16},
                                     .dtype = HBM_F32,
                                     .receipt = 2};
    p.table = memfd_sealed("pieces", p.pieces, 6 * sizeof(p.pieces[0]));
    return p;
}

static void drop_packed(struct packed *p)
{
    close(p->table);
    drop(&p->raw);
    drop(&p->packed);
}

static int ask_pack(struct packed *p, unsigned opcode, unsigned flags, uint64_t expected, union job_reply *reply, int *fd)
{
    struct job_pack_request request = {.raw = p->raw.extent,
                                       .packed = p->packed.extent,
                                       .bytes = p->packed.extent.size,
                                       .expected = expected,
                                       .flags = flags,
                                       .n_pieces = 6,
                                       .n_receipts = 3};
    int fds[] = {p->raw.fd, p->packed.fd, p->table};
    unsigned skip = flags & JOB_MAKE_TARGET ? 1 : 0;

    return ask_job(&worker, opcode, &request, fds + skip, 3 - skip, reply, fd);
}

/* What ENCODE and DECODE make of it. */
static void recode(struct packed *p, struct job_code code, struct job_receipt *receipt)
{
    struct ask_extent stored = make(JOB_EXTENT_HOST, 64 * MIB);
    struct job_encode_request encode = {.source = p->raw.extent, .target = stored.extent, .code = code};
    struct job_decode_request decode = {.source = stored.extent, .target = p->raw.extent, .code = code};
    int fds[] = {p->raw.fd, stored.fd}, back[] = {stored.fd, p->raw.fd};
    union job_reply reply;

    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0);
    *receipt = (struct job_receipt){reply.encode.receipt, reply.encode.quality};
    expect(ask_job(&worker, JOB_DECODE, &decode, back, 2, NULL, NULL), 0);
    drop(&stored);
}

static void recode_all(struct packed *p, struct job_receipt receipts[3])
{
    struct job_code code = {.raw_offset = WIDE_AT,
                            .rank = 1,
                            .dims = {WIDE},
                            .dtype = HBM_F32,
                            .encoding = {.codec = HBM_CODEC_FP16, .stored = HBM_F16}};

    recode(p, code, &receipts[0]);
    code = (struct job_code){.raw_offset = ROWS_AT,
                             .scale_offset = 32 * MIB,
                             .rank = 2,
                             .dims = {ROWS, ROW},
                             .dtype = HBM_F32,
                             .encoding = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .stored = HBM_I8}};
    recode(p, code, &receipts[1]);
    code = (struct job_code){.raw_offset = TAIL_AT,
                             .rank = 1,
                             .dims = {TAIL},
                             .dtype = HBM_F32,
                             .encoding = {.codec = HBM_CODEC_BF16, .stored = HBM_BF16}};
    recode(p, code, &receipts[2]);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void check_receipts(int fd, const struct job_receipt wanted[3])
{
    size_t size;
    struct job_receipt *receipts = memfd_map_sealed(fd, 4096, &size);

    assert_non_null(receipts);
    assert_int_equal(size, 3 * sizeof(*receipts));
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(receipts[i].receipt.elements, wanted[i].receipt.elements);
        assert_int_equal(receipts[i].receipt.bytes_before, wanted[i].receipt.bytes_before);
        assert_int_equal(receipts[i].receipt.bytes_after, wanted[i].receipt.bytes_after);
        assert_true(is_near(receipts[i].receipt.sqnr_db, wanted[i].receipt.sqnr_db));
        assert_true(receipts[i].receipt.max_abs_error == wanted[i].receipt.max_abs_error);
        assert_true(is_near(receipts[i].quality.sqnr_inlier_db, wanted[i].quality.sqnr_inlier_db));
        assert_true(receipts[i].quality.max_rel_error == wanted[i].quality.max_rel_error);
        assert_int_equal(receipts[i].quality.zeroed, wanted[i].quality.zeroed);
        assert_true(receipts[i].quality.lo == wanted[i].quality.lo && receipts[i].quality.hi == wanted[i].quality.hi);
    }
    munmap(receipts, size);
    close(fd);
}

static void pack_there_and_back(unsigned kind)
{
    struct packed p = make_packed(kind);
    struct job_receipt receipts[3];
    union job_reply reply;
    int fd = -1, made = -1;

    expect(ask_pack(&p, JOB_PACK, JOB_CHECKSUM, 0, &reply, &fd), 0);
    uint64_t checksum = reply.pack.checksum;
    recode_all(&p, receipts);
    check_receipts(fd, receipts);
    unsigned char *wanted = map(&p.raw), *got = NULL;
    /* Into memory that it makes. */
    expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY | JOB_MAKE_TARGET, checksum, &reply, &made), 0);
    assert_int_equal(reply.unpack.checksum, checksum);
    struct ask_extent fresh = {.extent = p.raw.extent, .fd = made};
    got = map(&fresh);
    assert_memory_equal(got + WIDE_AT, wanted + WIDE_AT, (size_t)WIDE * 4 + ODD);
    assert_memory_equal(got + ROWS_AT, wanted + ROWS_AT, (size_t)(RAW_SIZE - ROWS_AT));
    munmap(got, RAW_SIZE);
    close(made);
    /* And into memory that is there. */
    memset(wanted, 0xee, 4096);
    expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), 0);
    assert_true(wanted[0] == 0xee && wanted[WIDE_AT] != 0xee); /* between the buffers it writes nothing */
    munmap(wanted, p.raw.extent.size);
    drop_packed(&p);
}

static void an_arena_is_packed_as_its_buffers_are_encoded_and_comes_back_as_they_are_decoded(void **state)
{
    (void)state;
    pack_there_and_back(JOB_EXTENT_HOST);
    pack_there_and_back(JOB_EXTENT_DISK);
}

static void a_packed_copy_says_the_same_as_a_copy_of_it(void **state)
{
    struct packed p = make_packed(JOB_EXTENT_HOST), q;
    struct ask_extent disk = make(JOB_EXTENT_DISK, p.packed.extent.size);
    uint64_t checksum = 0;
    union job_reply reply;
    int fd = -1;

    (void)state;
    expect(ask_pack(&p, JOB_PACK, JOB_CHECKSUM, 0, &reply, &fd), 0);
    close(fd);
    expect(ask_copy(&worker, &p.packed, &disk, (struct ask_range){0, 0, p.packed.extent.size}, JOB_CHECKSUM, &checksum), 0);
    assert_int_equal(checksum, reply.pack.checksum);
    q = p;
    q.packed = disk;
    expect(ask_pack(&q, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), 0);
    drop(&disk);
    drop_packed(&p);
}

static void a_flipped_bit_in_what_is_packed_is_seen_wherever_it_is(void **state)
{
    struct packed p = make_packed(JOB_EXTENT_HOST);
    static const uint64_t places[] = {0, BATCH + 5, 3 * BATCH - 1, 4 * BATCH, 6 * BATCH - 1};
    unsigned char *bytes = map(&p.packed);
    union job_reply reply;
    uint64_t checksum;
    int fd = -1;

    (void)state;
    expect(ask_pack(&p, JOB_PACK, JOB_CHECKSUM, 0, &reply, &fd), 0);
    close(fd);
    checksum = reply.pack.checksum;
    assert_int_equal(bytes[3 * BATCH - 1], 0); /* between pieces */
    for (unsigned i = 0; i < 5; i++) {
        bytes[places[i]] ^= 4;
        expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), HBM_E_CHECKSUM);
        bytes[places[i]] ^= 4;
    }
    expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), 0);
    munmap(bytes, p.packed.extent.size);
    drop_packed(&p);
}

static void pieces_that_do_not_fit_are_refused(void **state)
{
    struct packed p = make_packed(JOB_EXTENT_HOST);
    unsigned fds = fds_of_worker();

    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        struct job_piece bad[6];
        memcpy(bad, p.pieces, sizeof(bad));
        switch (i) {
        case 0: bad[1].data_offset = 0; break; /* before the end of the last one */
        case 1: bad[5].raw_offset = RAW_SIZE - 4; break;
        case 2: bad[5].data_offset = 6 * BATCH - 256; break;
        case 3: bad[3].scale_offset = bad[3].data_offset; break;
        case 4: bad[3].encoding.axis = 0; break;
        case 5: bad[0].encoding.codec = 200; break;
        case 6: bad[0].dims[0] = UINT64_MAX; break;
        case 7: bad[5].receipt = 3; break;
        case 8: bad[0].raw_offset++; break;
        case 9: bad[2].dims[2] = 0; break;
        }
        close(p.table);
        p.table = memfd_sealed("pieces", bad, sizeof(bad));
        expect(ask_pack(&p, JOB_PACK, 0, 0, NULL, NULL), HBM_E_BAD_REQUEST);
        expect(ask_pack(&p, JOB_UNPACK, JOB_MAKE_TARGET, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    }
    close(p.table);
    p.table = memfd_sealed("pieces", p.pieces, 5 * sizeof(p.pieces[0]));
    expect(ask_pack(&p, JOB_PACK, 0, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    close(p.table);
    p.table = memfd_fixed("pieces", 6 * sizeof(p.pieces[0])); /* not sealed */
    expect(ask_pack(&p, JOB_PACK, 0, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    expect(ask_pack(&p, JOB_PACK, JOB_VERIFY, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    assert_int_equal(fds_of_worker(), fds);
    drop_packed(&p);
}

static void a_packing_ends_early_when_it_is_cancelled(void **state)
{
    static const unsigned kinds[] = {JOB_EXTENT_HOST, JOB_EXTENT_DISK};

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct packed p = make_packed(kinds[i / 2]);
        struct job_pack_request request = {.raw = p.raw.extent,
                                           .packed = p.packed.extent,
                                           .bytes = p.packed.extent.size,
                                           .flags = JOB_CHECKSUM,
                                           .n_pieces = 6,
                                           .n_receipts = 3};
        int fds[] = {p.raw.fd, p.packed.fd, p.table}, fd = -1, status;
        unsigned before = fds_of_worker();
        uint32_t answered, serial = ask_send(&worker, i % 2 ? JOB_UNPACK : JOB_PACK, &request, fds, 3);

        ask_cancel(&worker, serial);
        status = ask_receive(&worker, &answered, NULL, &fd);
        assert_int_equal(answered, serial);
        if (status) /* else it was faster */
            expect(status, HBM_E_CANCELLED);
        if (fd >= 0)
            close(fd);
        if (i < 2) /* else staging has made rings, and keeps them */
            assert_int_equal(fds_of_worker(), before);
        drop_packed(&p);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_WORKER(a_buffer_is_encoded_within_its_bounds_and_decoded_again),
        WITH_WORKER(codes_that_do_not_fit_are_refused),
        WITH_WORKER(what_is_observed_is_counted_and_a_range_is_found_in_the_counts),
        WITH_WORKER(what_cannot_be_observed_and_counts_that_are_none_are_refused),
        WITH_WORKER(an_arena_is_packed_as_its_buffers_are_encoded_and_comes_back_as_they_are_decoded),
        WITH_WORKER(a_packed_copy_says_the_same_as_a_copy_of_it),
        WITH_WORKER(a_flipped_bit_in_what_is_packed_is_seen_wherever_it_is),
        WITH_WORKER(pieces_that_do_not_fit_are_refused),
        WITH_WORKER(a_packing_ends_early_when_it_is_cancelled),
    };

    worker_tests_begin(argc, argv);
    return worker_tests_end(cmocka_run_group_tests_name("worker_code", tests, NULL, NULL));
}
