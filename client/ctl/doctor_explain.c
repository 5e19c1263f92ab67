/* `hbmctl doctor --explain ERROR`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/ctl/doctor.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"

struct known {
    const char *of; /* "hbm" or "CUDA" */
    int number;     /* as calls return it */
    const char *name, *other_name, *what, *remedy;
};

/* clang-format off */
static const struct known known[] = {
#define ERROR(name, number, what, remedy) {"hbm", -(number), #name, "HBM_E_" #name, what, remedy},
#include "proto/errors.def"
#undef ERROR
#define CUDA(number, name, runtime_name, what, remedy) {"CUDA", number, name, runtime_name, what, remedy},
#include "client/ctl/cuda_errors.def"
#undef CUDA
};
/* clang-format on */

/* Whether `error` is the name, or the number: negative ones are hbm's, positive ones CUDA's. */
static bool is_it(const struct known *one, const char *error)
{
    char *end;
    long number = strtol(error, &end, 10);

    return (*error && !*end && number == one->number) || (*one->name && !strcasecmp(one->name, error)) ||
           (*one->other_name && !strcasecmp(one->other_name, error));
}

static void tell(const struct cli *cli, const struct known *one)
{
    const char *name = *one->name ? one->name : one->other_name;
    bool both = *one->name && *one->other_name;

    if (cli->json) {
        _cleanup_json_ cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "of", one->of);
        cJSON_AddStringToObject(row, "error", name);
        cJSON_AddNumberToObject(row, "code", one->number);
        cJSON_AddStringToObject(row, "cause", one->what);
        cJSON_AddStringToObject(row, "remedy", one->remedy);
        report_json(row);
    } else {
        printf("%s%s%s (%s error %d)\n  cause: %s\n  to do: %s\n", name, both ? ", " : "",
               both ? one->other_name : "", one->of, one->number, one->what, one->remedy);
    }
}

int doctor_explain(const struct cli *cli, const char *error)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (is_it(&known[i], error)) {
            tell(cli, &known[i]);
            return EXIT_DONE;
        }
    }
    return report(cli, HBM_E_NOT_FOUND,
                  "no error \"%s\" of hbm or CUDA is known; give a name such as NO_MEMORY, CUDA_ERROR_NO_DEVICE or "
                  "cudaErrorNoDevice, or a number: below 0 of hbm, above of CUDA",
                  error);
}
