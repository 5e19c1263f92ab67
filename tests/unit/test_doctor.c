/* What hbmctl doctor makes of a machine, from files as the kernel would have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/ctl/doctor.h"
#include "client/ctl/text.h"

static struct doctor doctor;
static char root[] = "/tmp/hbm-doctor-XXXXXX";

/* A file of the made-up machine, with the folders above it. */
static void file(const char *path, const char *text)
{
    char *whole = text_new("%s%s", root, path);

    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *out = fopen(whole, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    free(whole);
}

static int begin(void **state)
{
    (void)state;
    strcpy(strrchr(root, '-') + 1, "XXXXXX");
    assert_non_null(mkdtemp(root));
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    doctor = (struct doctor){.root = root, .findings = cJSON_CreateArray()};
    return 0;
}

static int end(void **state)
{
    char *command = text_new("rm -rf %s", root);

    (void)state;
    assert_int_equal(system(command), 0);
    free(command);
    cJSON_Delete(doctor.findings);
    cJSON_Delete(doctor.status);
    return 0;
}

static const char *text_of(const cJSON *row, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, name));
}

/* The finding of that check with these words is of that state, with a fix where it is none to be content with. */
static void found(const char *check, const char *state, const char *words)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, doctor.findings)
    {
        if (strcmp(text_of(row, "check"), check) || !strstr(text_of(row, "found"), words))
            continue;
        assert_string_equal(text_of(row, "state"), state);
        assert_true(!strcmp(state, "ok") || *text_of(row, "fix"));
        return;
    }
    char *all = cJSON_Print(doctor.findings);
    fail_msg("no finding of %s has the words \"%s\": %s", check, words, all);
}

static void answered(const char *status)
{
    doctor.status = cJSON_Parse(status);
    assert_non_null(doctor.status);
}

static void a_plain_machine_has_nothing_to_complain_of(void **state)
{
    const cJSON *row;

    (void)state;
    file("/proc/sys/kernel/osrelease", "6.1.0-40-amd64\n");
    file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    file("/sys/devices/system/node/online", "0\n");
    file("/proc/1/cgroup", "0::/init.scope\n");
    doctor_machine(&doctor);
    assert_int_equal(cJSON_GetArraySize(doctor.findings), 5);
    cJSON_ArrayForEach(row, doctor.findings) assert_string_equal(text_of(row, "state"), "ok");
}

static void wsl_is_told_by_its_kernel(void **state)
{
    (void)state;
    file("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n");
    doctor_machine(&doctor);
    found("WSL", "failed", "shares no GPU memory");
}

static void an_mps_server_is_told_by_its_socket(void **state)
{
    (void)state;
    file("/tmp/nvidia-mps/control", "");
    doctor_machine(&doctor);
    found("MPS", "note", "fault in one of its clients");
}

static void huge_pages_that_are_off_and_several_nodes_are_told(void **state)
{
    (void)state;
    file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    file("/sys/devices/system/node/online", "0-1\n");
    file("/proc/sys/kernel/numa_balancing", "1\n");
    doctor_machine(&doctor);
    found("huge pages", "warning", "are off");
    found("NUMA", "note", "nodes 0-1;");
}

static void a_container_is_told_with_its_memory_limit_and_its_users(void **state)
{
    (void)state;
    file("/.dockerenv", "");
    file("/proc/self/uid_map", "         0     100000      65536\n");
    file("/sys/fs/cgroup/memory.max", "1073741824\n");
    answered("{\"devices\":[{\"tiers\":[{\"tier\":\"host\",\"capacity\":4294967296}]}]}");
    doctor_machine(&doctor);
    found("container", "note", "container of Docker");
    found("container", "note", "user 0 is 100000 there");
    found("container", "warning", "limit is 1.0 GiB, and the host tier may take 4.0 GiB");
}

static void low_limits_of_the_daemon_are_told_unless_it_has_the_right_to_pass_them(void **state)
{
    static const char limits[] = "Limit                     Soft Limit           Hard Limit           Units     \n"
                                 "Max open files            1024                 524288               files     \n"
                                 "Max locked memory         8388608              8388608              bytes     \n";

    (void)state;
    answered("{\"pid\":41}");
    file("/proc/41/limits", limits);
    file("/proc/41/status", "Name:\thbmd\nCapEff:\t0000000000000000\n");
    doctor_limits(&doctor);
    found("memlock", "warning", "hbmd may pin 8.0 MiB");
    found("nofile", "warning", "hbmd may have 1024 files open");

    cJSON_ReplaceItemInObject(doctor.status, "pid", cJSON_CreateNumber(42));
    file("/proc/42/limits", limits);
    file("/proc/42/status", "Name:\thbmd\nCapEff:\t0000000000004000\n");
    doctor_limits(&doctor);
    found("memlock", "ok", "all that it wants");
}

static void workers_without_io_uring_are_told_with_their_reason(void **state)
{
    (void)state;
    answered("{\"pid\":41,\"devices\":[{\"disk_io\":{\"by\":\"threads\",\"why\":\"Operation not permitted\"}}]}");
    doctor_limits(&doctor);
    found("limits", "note", "not to be seen");
    found("io_uring", "warning", "Operation not permitted");
}

static void a_disk_that_is_smaller_than_what_is_promised_of_it_is_told(void **state)
{
    (void)state;
    answered(
        "{\"devices\":[{\"tiers\":[{\"tier\":\"disk\",\"free\":1e18}],\"disk_io\":{\"past_page_cache\":false}}]}");
    doctor.config = cJSON_Parse("[{\"key\":\"state_dir\",\"value\":\"/proc\"}]");
    doctor_disk(&doctor);
    found("spill disk", "warning", "the disk tier may still take");
    found("O_DIRECT", "warning", "fills the page cache");
    cJSON_Delete(doctor.config);
    doctor.config = cJSON_Parse("[{\"key\":\"state_dir\",\"value\":\"/nonexistent\"}]");
    doctor_disk(&doctor);
    found("spill disk", "note", "cannot be looked at");
    cJSON_Delete(doctor.config);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(a_plain_machine_has_nothing_to_complain_of),
        TEST(wsl_is_told_by_its_kernel),
        TEST(an_mps_server_is_told_by_its_socket),
        TEST(huge_pages_that_are_off_and_several_nodes_are_told),
        TEST(a_container_is_told_with_its_memory_limit_and_its_users),
        TEST(low_limits_of_the_daemon_are_told_unless_it_has_the_right_to_pass_them),
        TEST(workers_without_io_uring_are_told_with_their_reason),
        TEST(a_disk_that_is_smaller_than_what_is_promised_of_it_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
