/* A worker asked by an owner that has lost its mind: its control loop with all its threads, on a socketpair. Jobs
 * right and wrong, on extents that it made itself or that are none. Each packet with a serial must be answered, and
 * once. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/worker/checksum.h"
#include "daemon/worker/control.h"
#include "proto/memfd.h"
#include "tests/fuzz/owner.h"

#define FILE_BYTES_MAX (64u << 20)

static void quiet(enum log_level level, const char *field, const char *line)
{
    (void)level, (void)field, (void)line;
}

static void *serve(void *fd)
{
    CHECK(!control_serve(*(int *)fd));
    return NULL;
}

/* One of the pieces, as it is or not quite. */
static void take_extent(struct input *in, struct job_extent *extent, int *fds, unsigned *n)
{
    uint8_t choice = take_byte(in);

    *extent = pieces[choice & 3].extent;
    fds[(*n)++] = fcntl(pieces[choice & 3].fd, F_DUPFD_CLOEXEC, 3);
    if (choice & 0x80)
        extent->token = choice;
    extent->encrypted = extent->kind == JOB_EXTENT_DISK && choice & 0x40;
    if (choice >= 0xe0)
        extent->kind = take_byte(in);
    if (choice >= 0xf0)
        extent->size = take_number(in);
}

static int take_ranges(struct input *in, uint32_t *n)
{
    struct job_range ranges[4] = {0};

    *n = *n % 5;
    for (unsigned i = 0; i < *n && i < 4; i++)
        for (uint64_t *field = &ranges[i].extent_offset; field <= &ranges[i].bytes; field++)
            *field = take_number(in);
    return memfd_sealed("ranges", ranges, sizeof(ranges[0]) * (*n < 4 ? *n : 4));
}

static int take_spans(struct input *in, uint32_t *n)
{
    struct job_span spans[4] = {0};

    *n = *n % 5;
    for (unsigned i = 0; i < *n && i < 4; i++)
        spans[i] = (struct job_span){take_byte(in), take_byte(in)};
    return memfd_sealed("spans", spans, sizeof(spans[0]) * (*n < 4 ? *n : 4));
}

/* Near enough to what a codec takes to get past the first look, mostly. */
static int take_pieces(struct input *in, uint32_t *n)
{
    static const uint32_t dtypes[] = {HBM_F32, HBM_F16, HBM_BF16, HBM_U8};
    struct job_piece list[4] = {0};

    *n = *n % 5;
    for (unsigned i = 0; i < *n && i < 4; i++) {
        struct job_piece *piece = &list[i];
        uint8_t choice = take_byte(in), group, more;
        for (uint64_t *field = &piece->raw_offset; field <= &piece->dims[2]; field++)
            *field = choice & 0x80 ? take_number(in) : take_byte(in);
        if (!(choice & 0x40)) {
            piece->raw_offset *= 4;
            piece->data_offset *= HBM_ALIGN;
            piece->scale_offset *= HBM_ALIGN;
        }
        group = take_byte(in);
        more = take_byte(in); /* its bits 2 and 3 count on from the first codecs */
        piece->encoding = (struct hbm_encoding){
            .codec = (choice & 3) | (more & 0xc), .granularity = choice >> 2 & 3, .axis = 1, .group = group};
        piece->encoding.stored = (uint8_t)hbm_codec_stored_dtype(piece->encoding.codec);
        piece->dtype = dtypes[choice >> 4 & 3];
        piece->receipt = more & 1;
    }
    return memfd_sealed("pieces", list, sizeof(list[0]) * (*n < 4 ? *n : 4));
}

#define JOB(NAME, opcode, name, fds_in, fds_out)                                                                   \
    static void fill_##name(struct input *in, struct job_##name##_request *request)                                \
    {                                                                                                              \
        static const struct known_ids *const known;                                                                \
        (void)known;                                                                                               \
        NAME##_REQUEST(FILL_FIELD, FILL_ARRAY)                                                                     \
    }
#include "proto/jobs.def"
#undef JOB

static void fill(struct input *in, uint32_t opcode, union job_request *request)
{
    switch (opcode) {
#define JOB(NAME, opcode, name, fds_in, fds_out)                                                                   \
    case JOB_##NAME:                                                                                               \
        fill_##name(in, &request->name);                                                                           \
        break;
#include "proto/jobs.def"
#undef JOB
    }
}

/* Extents and fds, which noise would never get right. */
static void dress(struct input *in, uint32_t opcode, union job_request *request, int fds[4], unsigned *n)
{
    switch (opcode) {
    case JOB_CREATE:
        request->create.size &= 0xfffff;
        request->create.flags &= request->create.kind == JOB_EXTENT_HOST ? JOB_AHEAD : 0;
        break;
    case JOB_COPY:
        take_extent(in, &request->copy.source, fds, n);
        take_extent(in, &request->copy.target, fds, n);
        break;
    case JOB_PACK:
        take_extent(in, &request->pack.raw, fds, n);
        take_extent(in, &request->pack.packed, fds, n);
        fds[(*n)++] = take_pieces(in, &request->pack.n_pieces);
        request->pack.n_receipts %= 3;
        break;
    case JOB_UNPACK:
        take_extent(in, &request->unpack.raw, fds, n);
        take_extent(in, &request->unpack.packed, fds, n);
        fds[(*n)++] = take_pieces(in, &request->unpack.n_pieces);
        request->unpack.n_receipts %= 3;
        break;
    case JOB_MEASURE:
        take_extent(in, &request->measure.raw, fds, n);
        fds[(*n)++] = take_pieces(in, &request->measure.n_pieces);
        break;
    case JOB_OBSERVE:
        take_extent(in, &request->observe.extent, fds, n);
        request->observe.offset &= 0xff00;
        break;
    case JOB_ENCODE:
        take_extent(in, &request->encode.source, fds, n);
        take_extent(in, &request->encode.target, fds, n);
        if (job_takes_bins(&request->encode.calibration))
            fds[(*n)++] = memfd_fixed("bins", JOB_OBSERVE_BYTES);
        break;
    case JOB_DECODE:
        take_extent(in, &request->decode.source, fds, n);
        take_extent(in, &request->decode.target, fds, n);
        break;
    case JOB_HASH:
        take_extent(in, &request->hash.extent, fds, n);
        fds[(*n)++] = take_spans(in, &request->hash.n_spans);
        break;
    case JOB_FILE:
        take_extent(in, &request->file.extent, fds, n);
        fds[(*n)++] = memfd_create("file", MFD_CLOEXEC);
        CHECK(!ftruncate(fds[*n - 1], 4096));
        fds[(*n)++] = take_ranges(in, &request->file.n_ranges);
        break;
    case JOB_LIMIT:
        for (unsigned i = 0; i < JOB_LINKS; i++)
            request->limit.limits[i] |= (uint64_t)1 << 40; /* no input waits */
        break;
    }
}

static void act(struct input *in)
{
    union job_request request = {0};
    uint32_t opcode = take_byte(in) % (JOB_OPCODES + 1);
    int fds[4];
    unsigned n = 0;

    fill(in, opcode, &request);
    dress(in, opcode, &request, fds, &n);
    const struct job_row *row = job_row(opcode);
    uint8_t oddity = take_byte(in);
    size_t size = row && oddity < 0xf8 ? row->request_size : oddity;
    if (oddity == 0xf7 && n)
        fd_close(fds[--n]);
    owner_ask(opcode, &request, size, fds, n, opcode == JOB_CREATE ? &request.create : NULL);
    while (n)
        fd_close(fds[--n]);
}

static void start(void)
{
    const struct job_start_request request = {
        .uuid = "host", .state_dir = "/dev/shm", .pinned_bytes = 8 << 20, .spill_key = 1};
    const struct job_spill_key key = {.id = 1, .key = "any"};
    int fd = memfd_sealed("key", &key, sizeof(key));

    owner_ask(JOB_START, &request, sizeof(request), &fd, 1, NULL);
    fd_close(fd);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct rlimit limit = {FILE_BYTES_MAX, FILE_BYTES_MAX};

    (void)argc, (void)argv;
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    log_set_sink(quiet);
    checksum_init();
    return setrlimit(RLIMIT_FSIZE, &limit);
}

/* With numbers of all magnitudes in it. */
static void make_piece(unsigned place, uint64_t size)
{
    uint32_t words[1024], word = place;
    int fd = memfd_fixed("piece", size);

    for (unsigned i = 0; i < 1024; i++)
        words[i] = word = word * 1664525 + 1013904223;
    CHECK(pwrite(fd, words, sizeof(words), 0) == sizeof(words));
    owner_keep(place, fd,
               (struct job_extent){.kind = place & 1 ? JOB_EXTENT_HOST : JOB_EXTENT_DEVICE, .size = size});
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    pthread_t thread;
    int ends[2];

    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    CHECK(!pthread_create(&thread, NULL, serve, &ends[1]));
    owner_begin(ends[0]);
    start(); /* the first one counts, the others are refused: it is one worker for all inputs */
    for (unsigned i = 0; i < 4; i++)
        make_piece(i, (uint64_t)4096 << (i * 2));
    for (unsigned i = 0; in.left && i < 24; i++)
        act(&in);
    close(owner_fd);
    CHECK(!pthread_join(thread, NULL));
    close(ends[1]);
    for (unsigned i = 0; i < 4; i++)
        pieces[i] = (struct piece){.fd = fd_close(pieces[i].fd)};
    return 0;
}
