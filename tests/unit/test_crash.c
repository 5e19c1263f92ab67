/* What a process that dies of its own bug leaves behind. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/crash.h"

static void it_says_which_signal_and_where_and_dies_of_it(void **state)
{
    char said[8192] = "";
    size_t size = 0;
    int ends[2], status;
    ssize_t n;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL); /* cmocka's */
        dup2(ends[1], STDERR_FILENO);
        crash_watch("it");
        abort();
    }
    close(ends[1]);
    while (size < sizeof(said) - 1 && (n = read(ends[0], said + size, sizeof(said) - 1 - size)) > 0)
        size += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(said, "it: signal 6"));
    assert_non_null(strstr(said, "the stack was\n"));
    assert_non_null(strstr(said, "test_crash("));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_says_which_signal_and_where_and_dies_of_it)};

    return cmocka_run_group_tests_name("crash", tests, NULL, NULL);
}
