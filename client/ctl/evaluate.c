/* --eval: the user's check on the model as each encoding would leave it. A copy of every buffer is encoded and decoded again,
 * so that it has the published dtype with the encoding's loss in it, and the check needs no decoder: it attaches NAME@eval
 * instead of NAME for what HBM_EVAL_COPIES lists. The copies go afterwards, also on Ctrl-C. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "client/ctl/advice.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/member.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/runtime_dir.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"

#define RESULT_MAX 240 /* of the last line that the command prints */

struct evaluation {
    const struct cli *cli;
    struct rpc *rpc;
    char directory[sizeof(((struct sockaddr_un *)0)->sun_path)];
    cJSON *copies; /* ids */
    int map;       /* memfd: NAME, a tab, the copy's name */
    double bytes_after;
};

static cJSON *about(const char *id)
{
    _cleanup_free_ char *sel = text_new("id:%s", id);
    cJSON *params = cJSON_CreateObject();

    if (!sel)
        out_of_memory();
    cJSON_AddStringToObject(params, "sel", sel);
    return params;
}

/* ---- Copies ---- */

static int make_copy(struct evaluation *evaluation, const cJSON *row, const cJSON *try)
{
    _cleanup_json_ cJSON *made = NULL, *decoded = NULL;
    _cleanup_free_ char *as = text_new("%s@eval", text_of(row, "name"));
    cJSON *params = about(text_of(row, "id"));

    if (!as)
        out_of_memory();
    cJSON_AddStringToObject(params, "codec", text_of(try, "codec"));
    if (*text_of(try, "granularity"))
        cJSON_AddStringToObject(params, "granularity", text_of(try, "granularity"));
    cJSON_AddStringToObject(params, "mode", "copy");
    cJSON_AddStringToObject(params, "as", as);
    int status = rpc_call(evaluation->rpc, "hbm.compress", params, &made);
    if (status)
        return status;
    const char *id = text_of(cJSON_GetArrayItem(made, 0), "id");
    cJSON_AddItemToArray(evaluation->copies, cJSON_CreateString(id));
    status = rpc_call(evaluation->rpc, "hbm.decompress", about(id), &decoded);
    if (!status && dprintf(evaluation->map, "%s\t%s\n", text_of(row, "name"), text_of(cJSON_GetArrayItem(made, 0), "name")) < 0)
        return report(evaluation->cli, HBM_E_SYSTEM, "the list of copies could not be written: %s; free some memory", strerror(errno));
    return status;
}

/* encoding NULL: as advised. */
static int make_copies(struct evaluation *evaluation, const cJSON *rows, const char *encoding)
{
    const cJSON *row;
    int status = 0;

    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *try = advice_try(row, encoding ? encoding : text_of(row, "advice"));
        if (!try)
            continue;
        if (interrupted())
            return report(evaluation->cli, HBM_E_CANCELLED, "the evaluation was interrupted; its copies are freed");
        status = make_copy(evaluation, row, try);
        if (status)
            return status;
    }
    return 0;
}

static int free_copies(struct evaluation *evaluation)
{
    const cJSON *id;
    int status = 0;

    cJSON_ArrayForEach(id, evaluation->copies)
    {
        _cleanup_json_ cJSON *freed = NULL;
        int error = rpc_call(evaluation->rpc, "hbm.free", about(id->valuestring), &freed);
        status = status ? status : error;
    }
    return status;
}

/* ---- The command ---- */

/* Its last line that is not empty into `result`. */
static void read_result(FILE *output, char *result)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;

    *result = 0;
    while ((n = getline(&line, &room, output)) >= 0) {
        while (n && strchr("\n\r \t", line[n - 1]))
            line[--n] = 0;
        if (n)
            snprintf(result, RESULT_MAX, "%s", line);
    }
    free(line);
}

static int run_command(struct evaluation *evaluation, const char *encoding, cJSON *row)
{
    char copies[32], result[RESULT_MAX];

    snprintf(copies, sizeof(copies), "/dev/fd/%d", evaluation->map);
    setenv("HBM_RUNTIME_DIR", evaluation->directory, 1);
    setenv("HBM_EVAL_ENCODING", encoding, 1);
    setenv("HBM_EVAL_COPIES", copies, 1);
    fflush(stdout);
    FILE *output = popen(cli_value(evaluation->cli, "--eval"), "re");
    if (!output)
        return report(evaluation->cli, HBM_E_SYSTEM, "the command of --eval could not be started: %s", strerror(errno));
    read_result(output, result);
    int ended = pclose(output);
    if (interrupted())
        return report(evaluation->cli, HBM_E_CANCELLED, "the evaluation was interrupted; its copies are freed");
    cJSON_AddNumberToObject(row, "exit", WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended));
    cJSON_AddStringToObject(row, "result", result);
    return 0;
}

/* A row of the answer, which the caller owns. encoding NULL: as advised; "raw": no copies. */
static int evaluate_one(struct evaluation *evaluation, const cJSON *rows, const char *encoding, cJSON **ret)
{
    _cleanup_fd_ int map = memfd_create("hbm-eval-copies", 0);
    _cleanup_json_ cJSON *copies = cJSON_CreateArray(), *row = cJSON_CreateObject();
    struct advice_sum sum = advice_sum(rows->child, encoding, true);

    if (map < 0)
        return report(evaluation->cli, HBM_E_SYSTEM, "no memory for the list of copies: %s; free some", strerror(errno));
    evaluation->map = map;
    evaluation->copies = copies;
    cJSON_AddStringToObject(row, "encoding", encoding ? encoding : "as advised");
    int status = make_copies(evaluation, rows, encoding);
    cJSON_AddNumberToObject(row, "buffers", cJSON_GetArraySize(copies));
    cJSON_AddNumberToObject(row, "bytes_after", sum.after);
    if (!status)
        status = run_command(evaluation, encoding ? encoding : "as advised", row);
    int freed = free_copies(evaluation);
    if (!status && !freed)
        *ret = TAKE_PTR(row);
    return status ? status : freed;
}

int evaluate(const struct cli *cli, const cJSON *rows, cJSON **evaluations, bool *passed)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *encodings = advice_encodings(rows);
    struct evaluation evaluation = {.cli = cli};
    int status = runtime_dir(cli, evaluation.directory, sizeof(evaluation.directory));

    if (!status)
        status = rpc_open(cli, &rpc);
    if (status)
        return status;
    evaluation.rpc = rpc;
    interrupt_watch();
    *evaluations = cJSON_CreateArray();
    cJSON_InsertItemInArray(encodings, 0, cJSON_CreateString("raw"));
    cJSON_AddItemToArray(encodings, cJSON_CreateNull());
    for (const cJSON *each = encodings->child; each && !status; each = each->next) {
        cJSON *row = NULL;
        status = evaluate_one(&evaluation, rows, cJSON_GetStringValue(each), &row);
        if (status)
            break;
        *passed = !cJSON_GetObjectItemCaseSensitive(row, "exit")->valuedouble;
        cJSON_AddItemToArray(*evaluations, row);
    }
    return status;
}
