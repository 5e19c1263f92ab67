#include "client/ctl/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/json_text.h"
#include "client/ctl/member.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"
#include "client/hbm.h"

static int status_of(int error)
{
    return error == HBM_E_NO_DAEMON || error == HBM_E_DISCONNECTED ? EXIT_NO_DAEMON : EXIT_REFUSED;
}

void report_clean(char *text)
{
    unsigned char *c = (unsigned char *)text;

    json_mend(text);
    for (; *c; c++) {
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
        else if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) /* C1: U+0080 to U+009F */
            c[0] = c[1] = '?';
    }
}

void out_of_memory(void)
{
    fputs("hbmctl: not enough memory in this process; try again with less running\n", stderr);
    exit(EXIT_REFUSED);
}

char *must_text(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    char *text = text_new_va(format, arguments);
    va_end(arguments);
    if (!text)
        out_of_memory();
    return text;
}

static void print_json(const cJSON *json)
{
    _cleanup_free_ char *text = cJSON_PrintUnformatted(json);

    if (!text)
        out_of_memory();
    json_mend(text);
    fputs(text, stdout);
}

void report_json(const cJSON *json)
{
    print_json(json);
    putchar('\n');
}

void report_json_row(const cJSON *row, size_t before)
{
    putchar(before ? ',' : '[');
    print_json(row);
}

static int tell(const struct cli *cli, const struct rpc_error *told)
{
    _cleanup_free_ char *hint = told->code == HBM_E_NOT_FOUND ? model_hint(cli) : NULL;
    struct rpc_error hinted = *told;
    const struct rpc_error *error = &hinted;

    if (hint)
        hinted.message = hint;
    if (cli->json) {
        _cleanup_json_ cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "error", error->name);
        cJSON_AddNumberToObject(json, "code", error->code);
        cJSON_AddStringToObject(json, "message", error->message);
        cJSON_AddStringToObject(json, "detail", error->detail ? error->detail : "");
        cJSON_AddStringToObject(json, "remedy", error->remedy ? error->remedy : "");
        report_json(json);
    }
    _cleanup_free_ char *line = strdup(error->message);
    fflush(stdout);
    if (!line)
        out_of_memory();
    report_clean(line);
    fprintf(stderr, "hbmctl: %s\n", line);
    return status_of(error->code);
}

static int tell_ours(const struct cli *cli, int error, char *message)
{
    struct rpc_error told = {
        .code = error,
        .name = (char *)hbm_error_name(error),
        .message = message,
        .remedy = (char *)hbm_error_remedy(error),
    };

    return tell(cli, &told);
}

int report(const struct cli *cli, int error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    _cleanup_free_ char *message = text_new_va(format, arguments);
    va_end(arguments);
    return message ? tell_ours(cli, error, message) : EXIT_REFUSED;
}

int report_libhbm(const struct cli *cli, int error, const char *format, ...)
{
    const char *detail = hbm_last_error_detail();
    va_list arguments;

    va_start(arguments, format);
    _cleanup_free_ char *doing = text_new_va(format, arguments);
    va_end(arguments);
    if (!doing)
        return EXIT_REFUSED;
    _cleanup_free_ char *message = text_new("%s: %s", doing, *detail ? detail : hbm_strerror(error));
    return message ? tell_ours(cli, error, message) : EXIT_REFUSED;
}

int report_rpc(const struct cli *cli, const struct rpc_error *error)
{
    return tell(cli, error);
}

static int error_by_name(const char *name)
{
#define ERROR(id, number, what, remedy)                                                                            \
    if (!strcmp(name, #id))                                                                                        \
        return HBM_E_##id;
#include "proto/errors.def"
#undef ERROR
    return HBM_E_INTERNAL;
}

int report_rows(const cJSON *rows)
{
    const cJSON *row, *first = NULL;
    unsigned more = 0;

    if (!cJSON_IsArray(rows))
        return EXIT_DONE;
    cJSON_ArrayForEach(row, rows)
    {
        if (!*text_of(row, "error") || cJSON_HasObjectItem(row, "op")) /* an op listed: no failure of this verb */
            continue;
        if (first)
            more++;
        else
            first = row;
    }
    if (!first)
        return EXIT_DONE;
    int error = error_by_name(text_of(first, "error"));
    fflush(stdout);
    fputs("hbmctl: ", stderr);
    _cleanup_free_ char *line = text_new("%s: %s: %s; %s", text_of(first, "name"), hbm_error_what(error),
                                         text_of(first, "detail"), hbm_error_remedy(error));
    if (line) {
        report_clean(line);
        fputs(line, stderr);
    }
    if (more)
        fprintf(stderr, " (and %u more failed)", more);
    fputc('\n', stderr);
    return status_of(error);
}
