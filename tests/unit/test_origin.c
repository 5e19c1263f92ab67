/* Containers and pods by the names of cgroups, as runtimes write them, and as somebody writes who means no good. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/origin.h"

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
#define POD "2f1cfe2a-0b8c-4d8e-9a65-0123456789ab"
#define POD_ "2f1cfe2a_0b8c_4d8e_9a65_0123456789ab"
#define STATIC_POD "0123456789abcdef0123456789abcdef"

static void assert_origin(const char *text, const char *pod, const char *container)
{
    struct origin origin;

    memset(&origin, 'x', sizeof(origin));
    origin_of_text(text, &origin);
    assert_string_equal(origin.pod, pod);
    assert_string_equal(origin.container, container);
}

static void test_the_names_of_all_runtimes_are_known_under_both_versions(void **state)
{
    (void)state;
    assert_origin("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" POD_ ".slice/cri-containerd-" ID ".scope\n", POD, ID);
    assert_origin("0::/kubepods.slice/kubepods-pod" POD_ ".slice/crio-" ID ".scope/container\n", POD, ID);
    assert_origin("0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" POD_
                  ".slice/cri-containerd-" ID ".scope",
                  POD, ID);
    assert_origin("12:pids:/kubepods/besteffort/pod" POD "/" ID "\n11:memory:/kubepods/besteffort/pod" POD "/" ID "\n0::/\n", POD, ID);
    assert_origin("5:cpu,cpuacct:/kubepods/pod" STATIC_POD "/" ID "\n", STATIC_POD, ID);
    assert_origin("0::/system.slice/containerd.service/kubepods-burstable-pod" POD_ ".slice:cri-containerd:" ID "\n", POD, ID);
    assert_origin("0::/system.slice/docker-" ID ".scope\n", "", ID);
    assert_origin("3:cpuset:/\n2:memory:/docker/" ID "\n", "", ID);
    assert_origin("0::/machine.slice/libpod-" ID ".scope/container\n", "", ID);
    assert_origin("0::/default/" ID "\n", "", ID);
    assert_origin("0::/user.slice/user-1000.slice/user@1000.service/user.slice/nerdctl-" ID ".scope\n", "", ID);
}

static void test_a_process_of_the_host_is_in_none(void **state)
{
    (void)state;
    assert_origin("", "", "");
    assert_origin("0::/\n", "", "");
    assert_origin("0::/system.slice/ssh.service\n", "", "");
    assert_origin("0::/machine.slice/crio-conmon-" ID ".scope\n", "", "");
    assert_origin("0::/user.slice/pod" POD "\n", "", ""); /* no kubepods above it */
}

static void test_the_outermost_counts_for_what_is_inside_is_made_by_who_is_inside(void **state)
{
    (void)state;
    assert_origin("0::/system.slice/docker-" ID ".scope/kubepods/pod" POD "/" OTHER "\n", "", ID);
    assert_origin("0::/kubepods/pod" POD "/" ID "/kubepods/pod" STATIC_POD "/" OTHER "\n", POD, ID);
}

static void test_hostile_names_come_to_nothing(void **state)
{
    char text[8192];

    (void)state;
    assert_origin("0::/kubepods/pod\033[2J;rm -rf $HOME 2f1cfe2a-0b8c/docker-" ID "0.scope\n", "", "");
    assert_origin("0::/kubepods/pod2F1CFE2A-0b8c-4d8e-9a65-0123456789ab/" ID "\n", "", ID);
    assert_origin("0::/kubepods/pod2f1cfe2a-0b8c-4d8e-9a65_0123456789a\"/\"\\\n", "", "");
    assert_origin("0::/kubepods/pod2f1cfe2a00b8c-4d8e-9a65-0123456789ab\n", "", "");
    assert_origin("kubepods/pod" POD "\n::\n:\n\n0:\n", "", "");
    assert_origin("0:name=a/kubepods/pod" POD ":/\n", "", "");
    memset(text, 'a', sizeof(text));
    memcpy(text, "0::/kubepods/pod", strlen("0::/kubepods/pod"));
    text[sizeof(text) - 1] = 0;
    assert_origin(text, "", "");
    memset(text, '/', sizeof(text) - 1);
    assert_origin(text, "", "");
    memset(text, ':', sizeof(text) - 1);
    assert_origin(text, "", "");
}

static void test_what_cannot_be_read_has_no_origin(void **state)
{
    struct origin origin;

    (void)state;
    memset(&origin, 'x', sizeof(origin));
    origin_of_process(0, &origin);
    assert_string_equal(origin.pod, "");
    origin_of_process(-1, &origin);
    origin_of_process(0x7fffffff, &origin);
    assert_string_equal(origin.container, "");
    origin_of_process(getpid(), &origin);
    assert_true(strlen(origin.container) == 0 || strlen(origin.container) == ORIGIN_CONTAINER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_names_of_all_runtimes_are_known_under_both_versions),
        cmocka_unit_test(test_a_process_of_the_host_is_in_none),
        cmocka_unit_test(test_the_outermost_counts_for_what_is_inside_is_made_by_who_is_inside),
        cmocka_unit_test(test_hostile_names_come_to_nothing),
        cmocka_unit_test(test_what_cannot_be_read_has_no_origin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
