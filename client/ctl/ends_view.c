/* What is gone, or has another name, as one sentence. */
#include <stdio.h>

#include "client/ctl/cell.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

/* Owned by the caller. */
static char *clean_member(const cJSON *result, const char *name)
{
    char *text = cell_text(cJSON_GetObjectItemCaseSensitive(result, name));

    report_clean(text);
    return text;
}

void show_removed(const struct cli *cli, const cJSON *result)
{
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(result, "bytes");
    _cleanup_free_ char *name = clean_member(result, "name");
    char size[UNITS_TEXT];

    (void)cli;
    printf("%s is removed, %s\n", name, units_bytes(cJSON_IsNumber(bytes) ? bytes->valuedouble : 0, size));
}

void show_renamed(const struct cli *cli, const cJSON *result)
{
    _cleanup_free_ char *name = clean_member(result, "name");

    (void)cli;
    printf("the name is now %s\n", name);
}

void show_kicked(const struct cli *cli, const cJSON *result)
{
    _cleanup_free_ char *session = clean_member(result, "session"), *pid = clean_member(result, "pid");

    (void)cli;
    printf("pid %s is disconnected, session %s\n", pid, session);
}
