/* The file `devices`: what is written comes back, and what else is found in its place is not believed (FAULTS 27).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/known_devices.h"

#define HEAD "hbmd devices, version 1: 1 cuda\n"
#define NAMED "GPU-1\tNVIDIA H200\t"
#define LINE NAMED "150754820096\t2097152\t1\t1\n"

static char directory[] = "/tmp/hbm-known-XXXXXX";
static int dir_fd;

static int make_directory(void **state)
{
    (void)state;
    dir_fd = mkdtemp(directory) ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    return dir_fd < 0;
}

static int remove_directory(void **state)
{
    (void)state;
    known_devices_remove(dir_fd);
    fd_close(dir_fd);
    return rmdir(directory);
}

static void put(const char *text, size_t size)
{
    int fd = openat(dir_fd, "devices", O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_int_equal(write(fd, text, size), size);
    close(fd);
}

static bool is_believed(const char *text)
{
    struct known_devices known;

    put(text, strlen(text));
    return known_devices_read(dir_fd, &known);
}

static void fill(struct known_devices *known)
{
    *known = (struct known_devices){.is_cuda = true, .n = PROBE_DEVICES_MAX};
    for (unsigned i = 0; i < known->n; i++) {
        struct known_device *device = &known->at[i];
        snprintf(device->found.uuid, sizeof(device->found.uuid), "%0*u", (int)sizeof(device->found.uuid) - 1, i);
        snprintf(device->found.name, sizeof(device->found.name), "%-*u", (int)sizeof(device->found.name) - 1, i);
        device->found.total_bytes = UINT64_MAX - i;
        device->granularity = (uint64_t)4096 << i % 20;
        device->can_fd = i % 2;
        device->can_cuda_ipc = i % 3 == 0;
    }
}

static void what_is_written_comes_back(void **state)
{
    struct known_devices known, back;

    (void)state;
    fill(&known);
    assert_int_equal(known_devices_write(dir_fd, &known), 0);
    assert_true(known_devices_read(dir_fd, &back));
    assert_true(back.is_cuda);
    assert_int_equal(back.n, known.n);
    for (unsigned i = 0; i < back.n; i++) {
        assert_string_equal(back.at[i].found.uuid, known.at[i].found.uuid);
        assert_string_equal(back.at[i].found.name, known.at[i].found.name);
        assert_int_equal(back.at[i].found.total_bytes, known.at[i].found.total_bytes);
        assert_int_equal(back.at[i].granularity, known.at[i].granularity);
        assert_int_equal(back.at[i].can_fd, known.at[i].can_fd);
        assert_int_equal(back.at[i].can_cuda_ipc, known.at[i].can_cuda_ipc);
    }
    assert_true(known_devices_have(&back, known.at[5].found.uuid));
    assert_false(known_devices_have(&back, "GPU-1"));
}

static void it_is_not_written_before_all_have_served(void **state)
{
    struct known_devices known, back;

    (void)state;
    fill(&known);
    known.at[7].granularity = 0;
    assert_int_equal(known_devices_write(dir_fd, &known), 0);
    assert_false(known_devices_read(dir_fd, &back));
}

static void one_that_is_cut_anywhere_is_not_believed(void **state)
{
    struct known_devices known;

    (void)state;
    assert_true(is_believed(HEAD LINE));
    for (size_t size = 0; size < strlen(HEAD LINE); size++) {
        put(HEAD LINE, size);
        assert_false(known_devices_read(dir_fd, &known));
    }
    put(HEAD LINE "\0", sizeof(HEAD LINE)); /* and one that has grown neither */
    assert_false(known_devices_read(dir_fd, &known));
    known_devices_remove(dir_fd);
    assert_false(known_devices_read(dir_fd, &known));
}

static void one_that_says_something_else_is_not_believed(void **state)
{
    static const char *const texts[] = {
        "hbmd devices, version 2: 1 cuda\n" LINE,
        "hbmd devices, version 1: 1 tape\n" LINE,
        "hbmd devices, version 1: 0 cuda\n",
        "hbmd devices, version 1: 2 cuda\n" LINE,
        "hbmd devices, version 1: 2 cuda\n" LINE LINE, /* twice the same */
        "hbmd devices, version 1: 65 cuda\n" LINE,
        "hbmd devices, version 1: -1 cuda\n" LINE,
        "hbmd devices, version 1: 1 cuda \n" LINE,
        LINE,
        HEAD LINE LINE,
        HEAD "\t\t\t\t\t\n",
        HEAD NAMED "much\t2097152\t1\t1\n",
        HEAD NAMED "150754820096\t0\t1\t1\n",
        HEAD NAMED "150754820096\t512\t1\t1\n",
        HEAD NAMED "150754820096\t2097153\t1\t1\n",
        HEAD NAMED "150754820096\t2097152\t2\t1\n",
        HEAD NAMED "150754820096\t2097152\t1\t-1\n",
        HEAD NAMED "150754820096\t2097152\t1\n",
        HEAD NAMED "150754820096\t2097152\t1\t1\t1\n",
        HEAD "GPU-0123456789012345678901234567890123456789012345678901234567890123456789\tH200\t1\t4096\t1\t1\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (is_believed(texts[i]))
            fail_msg("believed: %s", texts[i]);
}

static void what_is_no_file_is_neither_followed_nor_waited_for(void **state)
{
    struct known_devices known;

    (void)state;
    assert_true(is_believed(HEAD LINE));
    renameat(dir_fd, "devices", dir_fd, "elsewhere");
    assert_int_equal(symlinkat("elsewhere", dir_fd, "devices"), 0);
    assert_false(known_devices_read(dir_fd, &known));
    unlinkat(dir_fd, "elsewhere", 0);
    known_devices_remove(dir_fd);
    assert_int_equal(mkfifoat(dir_fd, "devices", 0600), 0);
    assert_false(known_devices_read(dir_fd, &known));
    known_devices_remove(dir_fd);
    assert_int_equal(mkdirat(dir_fd, "devices", 0700), 0);
    assert_false(known_devices_read(dir_fd, &known));
    fill(&known);
    assert_int_equal(known_devices_write(dir_fd, &known), -EISDIR);
    unlinkat(dir_fd, "devices", AT_REMOVEDIR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_not_written_before_all_have_served),
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(one_that_is_cut_anywhere_is_not_believed),
        cmocka_unit_test(one_that_says_something_else_is_not_believed),
        cmocka_unit_test(what_is_no_file_is_neither_followed_nor_waited_for),
    };

    return cmocka_run_group_tests_name("known_devices", tests, make_directory, remove_directory);
}
