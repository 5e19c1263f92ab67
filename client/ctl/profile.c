#include "client/ctl/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/json_text.h"
#include "client/ctl/member.h"
#include "client/ctl/out_file.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"

#define FILE_MAX (1 << 20)

void profile_clear(struct profile *profile)
{
    cJSON_Delete(profile->json);
    free(profile->path);
    free(profile->missing);
    free(profile->stale);
    *profile = (struct profile){0};
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..." */
char *profile_driver(bool is_gpu)
{
    struct utsname system;
    char text[512] = "", version[64] = "";
    FILE *file = is_gpu ? fopen("/proc/driver/nvidia/version", "re") : NULL;

    if (file) {
        const char *at = fgets(text, sizeof(text), file) ? strstr(text, "Module") : NULL;
        at = at ? strpbrk(at, "0123456789") : NULL;
        if (at)
            sscanf(at, "%63[0-9.]", version);
        fclose(file);
    }
    if (is_gpu)
        return must_text("NVIDIA %s", *version ? version : "driver of unknown version");
    return uname(&system) == 0 ? must_text("Linux %s", system.release) : must_text("unknown");
}

/* ---- Where ---- */

static char *own_directory(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

    if (state && *state == '/')
        return must_text("%s/hbmd", state);
    return home && *home == '/' ? must_text("%s/.local/state/hbmd", home) : NULL;
}

/* With what is above it, as far as that is ours to make. */
static void make_directory(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

int profile_place(const struct cli *cli, const struct state *state, struct profile *profile)
{
    const char *given = cli_value(cli, "--profile");
    _cleanup_free_ char *own = NULL;
    const char *directory = state->directory;

    if (given) {
        profile->path = must_text("%s", given);
    } else {
        if (!*directory || access(directory, R_OK | W_OK | X_OK) < 0)
            directory = own = own_directory();
        if (!directory)
            return report(cli, HBM_E_INVALID,
                          "there is nowhere to keep a profile: the daemon's state directory is closed to this "
                          "user, and HOME is not set; name a file with --profile");
        profile->path = must_text("%s/profile-%s.json", directory, text_of(state->device, "uuid"));
    }
    return 0;
}

/* ---- Read ---- */

/* As far as it may be one; NULL: it cannot be read. */
static char *whole_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(FILE_MAX) : NULL;

    *size = text ? fread(text, 1, FILE_MAX, file) : 0;
    if (file)
        fclose(file);
    return text;
}

static void judge_age(const struct state *state, struct profile *profile)
{
    _cleanup_free_ char *driver = profile_driver(strcmp(text_of(state->device, "kind"), "host") != 0);
    const char *uuid = text_of(state->device, "uuid"), *name = text_of(state->device, "name");

    if (strcmp(text_of(profile->json, "device"), uuid) || strcmp(text_of(profile->json, "name"), name))
        profile->stale = must_text("it is of %s (%s), and this is %s (%s)", text_of(profile->json, "name"),
                                   text_of(profile->json, "device"), name, uuid);
    else if (strcmp(text_of(profile->json, "driver"), driver))
        profile->stale =
            must_text("it was measured with %s, and now it is %s", text_of(profile->json, "driver"), driver);
    else if (strcmp(text_of(profile->json, "hbmctl"), HBM_VERSION))
        profile->stale = must_text("it was measured by hbmctl %s, and this is %s", text_of(profile->json, "hbmctl"),
                                   HBM_VERSION);
}

int profile_read(const struct cli *cli, const struct state *state, struct profile *profile, struct facts *facts)
{
    static const struct json_rules rules = {.depth_max = 16};
    const char *why = "is not one that hbmctl wrote";
    size_t size;
    _cleanup_free_ char *text = whole_file(profile->path, &size);

    if (!text) {
        if (cli_value(cli, "--profile"))
            return report(
                cli, HBM_E_IO,
                "the profile %s cannot be read: %m; measure with `hbmctl advise --measure --profile FILE`",
                profile->path);
        profile->missing = must_text("nothing was measured yet (%s: %m)", profile->path);
        return 0;
    }
    profile->json = json_parse(text, size, &rules, &why);
    const cJSON *figures = cJSON_GetObjectItemCaseSensitive(profile->json, "figures");
    if (!cJSON_IsObject(figures))
        return report(cli, HBM_E_INVALID,
                      "the profile %s is not usable: it %s; measure again with `hbmctl advise --measure`",
                      profile->path, why);
    facts_read(facts, FACT_MEASURED, figures);
    judge_age(state, profile);
    return 0;
}

/* ---- Measured ---- */

static int keep(const struct cli *cli, const struct profile *profile)
{
    _cleanup_(out_file_clear) struct out_file out = {.fd = -1};
    _cleanup_free_ char *text = cJSON_Print(profile->json);
    char why[OUT_FILE_WHY];

    if (!text)
        out_of_memory();
    if (out_file_open(&out, profile->path, why) < 0)
        return report(cli, HBM_E_IO, "the profile was not kept: %s", why);
    if (dprintf(out.fd, "%s\n", text) < 0)
        return report(cli, HBM_E_IO,
                      "the profile was not kept: %s cannot be written: %m; name another file with --profile",
                      profile->path);
    return out_file_commit(&out, why) < 0 ? report(cli, HBM_E_IO, "the profile was not kept: %s", why) : 0;
}

int profile_measure(const struct cli *cli, const struct state *state, struct profile *profile, struct facts *facts)
{
    _cleanup_free_ char *driver = profile_driver(facts->is_gpu == 1);
    cJSON *missing = cJSON_CreateObject();
    char when[32];
    time_t now = time(NULL);
    struct tm parts;

    if (!cli_value(cli, "--profile")) {
        _cleanup_free_ char *directory =
            must_text("%.*s", (int)(strrchr(profile->path, '/') - profile->path), profile->path);
        make_directory(directory);
    }
    profile->json = cJSON_CreateObject();
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    cJSON_AddStringToObject(profile->json, "device", text_of(state->device, "uuid"));
    cJSON_AddStringToObject(profile->json, "name", text_of(state->device, "name"));
    cJSON_AddStringToObject(profile->json, "kind", text_of(state->device, "kind"));
    cJSON_AddStringToObject(profile->json, "driver", driver);
    cJSON_AddStringToObject(profile->json, "hbmctl", HBM_VERSION);
    cJSON_AddStringToObject(profile->json, "measured", when);
    int status = figures_measure(cli, state, facts, missing);
    cJSON_AddItemToObject(profile->json, "figures", facts_json(facts, FACT_MEASURED));
    cJSON_AddItemToObject(profile->json, "missing", missing);
    return status ? status : keep(cli, profile);
}
