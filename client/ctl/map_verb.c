/* `hbmctl map`. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/map.h"
#include "client/ctl/out_file.h"
#include "client/ctl/report.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/terminal.h"
#include "client/ctl/verbs.h"

static int write_svg(const struct cli *cli, const struct map *map, const char *path)
{
    _cleanup_(out_file_clear) struct out_file file = {.fd = -1};
    char why[OUT_FILE_WHY];

    interrupt_watch();
    if (out_file_open(&file, path, why) < 0)
        return report(cli, HBM_E_IO, "%s was not written: %s", path, why);
    FILE *out = fdopen(dup(file.fd), "w");
    if (!out)
        return report(cli, HBM_E_SYSTEM, "%s was not written: %m; free some memory or files", path);
    map_svg(map, out);
    int failed = ferror(out);
    if (fclose(out) || failed)
        return report(cli, HBM_E_IO, "%s was not written: %s; free space or write elsewhere", path,
                      strerror(errno));
    if (out_file_commit(&file, why) < 0)
        return report(cli, HBM_E_IO, "%s was not written: %s", path, why);
    return EXIT_DONE;
}

static void print_json(const struct map *map)
{
    _cleanup_json_ cJSON *rows = cJSON_CreateArray();

    for (unsigned i = 0; i < map->n_pieces; i++) {
        const struct piece *piece = &map->pieces[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "device", piece->device);
        cJSON_AddStringToObject(row, "tier", piece->tier);
        cJSON_AddStringToObject(row, "model", piece->model);
        cJSON_AddStringToObject(row, "group", piece->group);
        cJSON_AddNumberToObject(row, "bytes", piece->bytes);
        cJSON_AddNumberToObject(row, "buffers", piece->buffers);
        cJSON_AddBoolToObject(row, "leased", piece->leased);
        cJSON_AddBoolToObject(row, "locked", piece->locked);
        cJSON_AddItemToArray(rows, row);
    }
    report_json(rows);
}

int run_map(const struct cli *cli)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *devices = NULL, *kept = cJSON_CreateArray();
    _cleanup_(map_clear) struct map map = {0};
    const char *svg = cli_value(cli, "--svg");
    int status = rpc_open(cli, &rpc);

    if (!status)
        status = rpc_call(rpc, "hbm.devices", NULL, &devices);
    if (!status)
        status = rpc_rows(rpc, "hbm.ls", NULL, map_keep, kept);
    if (status)
        return status;
    map_make(&map, devices, kept);
    if (svg)
        return write_svg(cli, &map, svg);
    if (cli->json)
        print_json(&map);
    else
        map_print(&map, terminal_width());
    return EXIT_DONE;
}
