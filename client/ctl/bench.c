/* bench: what is measured has programs of its own, since hbmctl loads no CUDA. They are beside hbmctl, or where the workers
 * are installed. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/bench.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"

static char *beside_us(const char *program)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n <= 0)
        return NULL;
    self[n] = 0;
    *(strrchr(self, '/') + 1) = 0;
    _cleanup_free_ char *beside = text_new("%s%s", self, program);
    if (beside && !access(beside, X_OK))
        return TAKE_PTR(beside);
    return text_new("%s../lib/hbmd/%s", self, program);
}

char *bench_program(void)
{
    char *program = beside_us("hbm-bench-smem");

    if (program && !access(program, X_OK))
        return program;
    free(program);
    return NULL;
}

int run_bench(const struct cli *cli)
{
    const char *size = cli_value(cli, "--size");

    if (strcmp(cli->words[0], "smem"))
        return report(cli, HBM_E_INVALID, "bench measures smem, not \"%s\"; `make bench` measures the rest", cli->words[0]), EXIT_USAGE;
    _cleanup_free_ char *program = bench_program();
    if (!program)
        return report(cli, HBM_E_UNSUPPORTED,
                      "hbm-bench-smem is neither beside hbmctl nor in ../lib/hbmd: it is built where the CUDA toolkit is; shared memory is a GPU's");
    execl(program, program, size ? size : "4096", cli->json ? "--json" : (char *)NULL, (char *)NULL);
    return report(cli, HBM_E_SYSTEM, "%s cannot be run: %s; see its mode", program, strerror(errno));
}
