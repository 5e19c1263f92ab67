/* `hbmctl observe`: a batch more; or what was observed as a file for others, and what others found as if it had
 * been. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/member.h"
#include "client/ctl/out_file.h"
#include "client/ctl/ranges.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/verbs.h"

#define FILE_MAX ((off_t)64 << 20)
#define IMPORT_MAX 8000 /* what hbm.set_ranges takes */

/* A tensor's name without that of its model, as in a saved file; NULL: it has none. */
static const char *name_there(const cJSON *row)
{
    const char *name = cJSON_GetStringValue(member(row, "name")),
               *model = cJSON_GetStringValue(member(row, "model"));
    size_t length = model ? strlen(model) : 0;

    /* Of another's the name begins with whose it is. */
    for (const char *at = name; at && model && (at = strstr(at, model)); at++)
        if ((at == name || at[-1] == '/') && at[length] == '/')
            return at + length + 1;
    return name;
}

static int selected(const struct cli *cli, struct rpc *rpc, cJSON **rows)
{
    cJSON *params = cJSON_CreateObject();

    cJSON_AddStringToObject(params, "sel", cli->words[0]);
    return rpc_call(rpc, "hbm.show", params, rows);
}

/* ---- To a file ---- */

static int write_file(const struct cli *cli, const char *path, const char *text)
{
    _cleanup_(out_file_clear) struct out_file file = {0};
    char why[OUT_FILE_WHY];
    size_t left = strlen(text);

    if (out_file_open(&file, path, why))
        return report(cli, HBM_E_SYSTEM, "%s", why);
    while (left) {
        ssize_t n = write(file.fd, text, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return report(cli, HBM_E_IO, "%s cannot be written: %s; free some room there", path, strerror(errno));
        text += n;
        left -= (size_t)n;
    }
    return out_file_commit(&file, why) ? report(cli, HBM_E_IO, "%s", why) : EXIT_DONE;
}

/* Of what has always been 0 there is none. */
static bool take_range(const cJSON *row, double *lo, double *hi)
{
    const cJSON *range = member(member(row, "observed"), "range");

    *lo = cJSON_GetNumberValue(cJSON_GetArrayItem(range, 0));
    *hi = cJSON_GetNumberValue(cJSON_GetArrayItem(range, 1));
    return cJSON_GetArraySize(range) == 2 && (*lo < 0 || *hi > 0);
}

static int gather(const struct cli *cli, const cJSON *rows, struct ranges *ranges)
{
    const char *twice;
    const cJSON *row;

    cJSON_ArrayForEach(row, rows)
    {
        const char *name = name_there(row);
        double lo, hi;
        if (name && take_range(row, &lo, &hi) && !ranges_add(ranges, strdup(name), lo, hi))
            out_of_memory();
    }
    if (!ranges->n)
        return report(cli, HBM_E_NOT_FOUND,
                      "nothing was observed of %s: there is no range to export; run `hbmctl observe` first",
                      cli->words[0]);
    if (ranges_sort(ranges, &twice))
        return EXIT_DONE;
    return report(cli, HBM_E_INVALID, "two buffers would be called %s in the file: export one model at a time",
                  twice);
}

static int export_ranges(const struct cli *cli, struct rpc *rpc, const char *path, enum ranges_format format)
{
    _cleanup_json_ cJSON *rows = NULL;
    _cleanup_(ranges_clear) struct ranges ranges = {0};
    char why[RANGES_WHY];
    int status = selected(cli, rpc, &rows);

    if (!status)
        status = gather(cli, rows, &ranges);
    if (status)
        return status;
    _cleanup_free_ char *text = ranges_print(format, &ranges, why);
    if (!text)
        out_of_memory();
    status = write_file(cli, path, text);
    if (!status && !cli->json)
        printf("%zu range%s in %s\n", ranges.n, ranges.n == 1 ? "" : "s", path);
    else if (!status)
        printf("{\"ranges\":%zu}\n", ranges.n);
    return status;
}

/* ---- From a file ---- */

static int read_file(const struct cli *cli, const char *path, char **text, size_t *size)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0)
        return report(cli, HBM_E_IO, "%s cannot be read: %s; check the path", path, strerror(errno));
    if (!S_ISREG(status.st_mode) || status.st_size > FILE_MAX)
        return report(cli, HBM_E_INVALID,
                      "%s is no regular file of up to 64 MiB: it is no calibration; check the path", path);
    _cleanup_free_ char *bytes = malloc((size_t)status.st_size + 1);
    if (!bytes)
        out_of_memory();
    for (*size = 0; *size < (size_t)status.st_size;) {
        ssize_t n = read(fd, bytes + *size, (size_t)status.st_size - *size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return report(cli, HBM_E_IO, "%s cannot be read: %s; check the file system", path, strerror(errno));
        if (!n)
            break;
        *size += (size_t)n;
    }
    *text = TAKE_PTR(bytes);
    return EXIT_DONE;
}

/* What the file has of the buffers. */
static cJSON *match(const cJSON *rows, const struct ranges *ranges)
{
    cJSON *list = cJSON_CreateArray();
    const cJSON *row;

    cJSON_ArrayForEach(row, rows)
    {
        const char *name = name_there(row);
        const struct range *range = name ? ranges_find(ranges, name) : NULL;
        if (!range)
            continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "id", cJSON_GetStringValue(member(row, "id")));
        cJSON_AddNumberToObject(item, "lowest", (double)range->lo);
        cJSON_AddNumberToObject(item, "highest", (double)range->hi);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static int import_ranges(const struct cli *cli, struct rpc *rpc, const char *path, enum ranges_format format)
{
    _cleanup_json_ cJSON *rows = NULL, *result = NULL;
    _cleanup_(ranges_clear) struct ranges ranges = {0};
    _cleanup_free_ char *text = NULL;
    char why[RANGES_WHY];
    size_t size = 0;
    int status = read_file(cli, path, &text, &size);

    if (!status && !ranges_parse(format, text, size, &ranges, why))
        status =
            report(cli, HBM_E_INVALID, "%s: %s; nothing was imported: check the file, and --format", path, why);
    if (!status)
        status = selected(cli, rpc, &rows);
    if (status)
        return status;
    cJSON *list = match(rows, &ranges), *params = cJSON_CreateObject();
    int n = cJSON_GetArraySize(list);
    cJSON_AddItemToObject(params, "ranges", list);
    if (!n) {
        cJSON_Delete(params);
        return report(cli, HBM_E_NOT_FOUND,
                      "none of the %zu names in %s is that of a buffer of %s: a tensor's is without its model's",
                      ranges.n, path, cli->words[0]);
    }
    if (n > IMPORT_MAX) {
        cJSON_Delete(params);
        return report(cli, HBM_E_INVALID,
                      "%s has ranges of %d buffers of %s, and %d are imported at once: name a part of them", path,
                      n, cli->words[0], IMPORT_MAX);
    }
    status = rpc_call(rpc, "hbm.set_ranges", params, &result);
    if (status)
        return status;
    if (cli->json)
        report_json(result);
    else
        show_observed(cli, result);
    if (!cli->json && (size_t)n < ranges.n)
        printf("%zu more in %s are not of these buffers\n", ranges.n - (size_t)n, path);
    return EXIT_DONE;
}

int run_observe(const struct cli *cli)
{
    const char *to = cli_value(cli, "--export"), *from = cli_value(cli, "--import"),
               *named = cli_value(cli, "--format");
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;

    if (!to && !from && !named)
        return run_operation(cli);
    if (!named || !to == !from || cli_value(cli, "--momentum") || cli_value(cli, "--forget") ||
        cli_value(cli, "--async")) {
        report(cli, HBM_E_INVALID,
               "--export or --import goes with --format, and with nothing else; see `hbmctl help observe`");
        return EXIT_USAGE;
    }
    int status = rpc_open(cli, &rpc);
    if (status)
        return status;
    enum ranges_format format = (enum ranges_format)ranges_format_by_name(named);
    return to ? export_ranges(cli, rpc, to, format) : import_ranges(cli, rpc, from, format);
}
