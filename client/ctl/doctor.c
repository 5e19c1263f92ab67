#include "client/ctl/doctor.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"

static const char *const verdicts[] = {"ok", "note", "warning", "failed"};

void doctor_find(struct doctor *doctor, enum verdict verdict, const char *check, const char *fix, const char *found,
                 ...)
{
    cJSON *row = cJSON_CreateObject();
    va_list arguments;

    va_start(arguments, found);
    _cleanup_free_ char *text = text_new_va(found, arguments);
    va_end(arguments);
    if (!text)
        out_of_memory();
    cJSON_AddStringToObject(row, "check", check);
    cJSON_AddStringToObject(row, "state", verdicts[verdict]);
    cJSON_AddStringToObject(row, "found", text);
    cJSON_AddStringToObject(row, "fix", fix);
    cJSON_AddItemToArray(doctor->findings, row);
}

bool doctor_there(const struct doctor *doctor, const char *path)
{
    _cleanup_free_ char *whole = text_new("%s%s", doctor->root, path);

    return whole && access(whole, F_OK) == 0;
}

bool doctor_read(const struct doctor *doctor, const char *path, char *text, size_t size)
{
    _cleanup_free_ char *whole = text_new("%s%s", doctor->root, path);
    _cleanup_fd_ int fd = whole ? open(whole, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    text[n < 0 ? 0 : n] = 0;
    return n >= 0;
}

static const char *text_of(const cJSON *row, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, name));
}

static void print(const cJSON *findings)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, findings)
    {
        _cleanup_free_ char *found = text_new("%s", text_of(row, "found"));
        if (!found)
            out_of_memory();
        report_clean(found);
        printf("%-8s %-11s %s\n", text_of(row, "state"), text_of(row, "check"), found);
        if (*text_of(row, "fix"))
            printf("%-20s -> %s\n", "", text_of(row, "fix"));
    }
}

static int judge(const cJSON *findings)
{
    const cJSON *row;

    cJSON_ArrayForEach(row,
                       findings) if (!strcmp(text_of(row, "state"), verdicts[VERDICT_FAILED])) return EXIT_REFUSED;
    return EXIT_DONE;
}

int run_doctor(const struct cli *cli)
{
    struct doctor doctor = {.cli = cli, .root = "", .findings = cJSON_CreateArray()};
    const char *error = cli_value(cli, "--explain");

    if (error) {
        cJSON_Delete(doctor.findings);
        return doctor_explain(cli, error);
    }
    doctor_daemon(&doctor);
    doctor_driver(&doctor);
    doctor_limits(&doctor);
    doctor_disk(&doctor);
    doctor_machine(&doctor);
    if (cli->json)
        report_json(doctor.findings);
    else
        print(doctor.findings);
    int status = judge(doctor.findings);
    cJSON_Delete(doctor.findings);
    cJSON_Delete(doctor.status);
    cJSON_Delete(doctor.config);
    return status;
}
