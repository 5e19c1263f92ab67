/* `hbmctl support-bundle`: one archive with what somebody who is to help asks for first. Each part of it is what a program
 * says, this one mostly, so it holds what the caller may see and nothing else; what does not answer in time is left out and
 * said. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/out_file.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"

#define LOG_BYTES (1u << 20) /* the end of a log */

/* Without a program it is this one that is asked. */
static const struct part {
    const char *file, *program;
    const char *arguments[8];
} parts[] = {
    {"version.txt", NULL, {"--version"}},
    {"status.json", NULL, {"--json", "status"}},
    {"devices.json", NULL, {"--json", "devices"}},
    {"who.json", NULL, {"--json", "who"}},
    {"models.json", NULL, {"--json", "models"}},
    {"sessions.json", NULL, {"--json", "sessions"}},
    {"accounts.json", NULL, {"--json", "accounts"}},
    {"ops.json", NULL, {"--json", "ops"}},
    {"events.json", NULL, {"--json", "events"}},
    {"why-not-free.json", NULL, {"--json", "why-not-free"}},
    {"config.json", NULL, {"--json", "config"}},
    {"metrics.txt", NULL, {"metrics"}},
    {"doctor.txt", NULL, {"doctor"}},
    {"kernel.txt", "uname", {"-srvm"}},
    {"journal.txt", "journalctl", {"--unit=hbmd.service", "--lines=5000", "--no-pager", "--quiet", "--output=short-iso"}},
};

#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

struct bundle {
    const struct cli *cli;
    char *scratch, *name; /* a directory of ours, and the one in it that goes into the archive */
    cJSON *missing;       /* [{file, why}] */
    unsigned n, seconds;
    int errors; /* what all of them say on stderr */
};

static char *path_in(const struct bundle *bundle, const char *file)
{
    char *path = text_new("%s/%s/%s", bundle->scratch, bundle->name, file);

    if (!path)
        out_of_memory();
    return path;
}

static void remove_scratch(struct bundle *bundle)
{
    static const char *const others[] = {"errors.txt", "log.txt", ""};

    for (size_t i = 0; bundle->name && i < N_PARTS + 3; i++) {
        _cleanup_free_ char *path = path_in(bundle, i < N_PARTS ? parts[i].file : others[i - N_PARTS]);
        remove(path);
    }
    if (bundle->scratch)
        rmdir(bundle->scratch);
    if (bundle->errors >= 0)
        close(bundle->errors);
    free(bundle->scratch);
    free(bundle->name);
    cJSON_Delete(bundle->missing);
}

static int make_scratch(struct bundle *bundle)
{
    const char *place = getenv("TMPDIR");
    char now[32] = "";
    time_t seconds = time(NULL);
    struct tm utc;

    strftime(now, sizeof(now), "%Y%m%dT%H%M%SZ", gmtime_r(&seconds, &utc));
    bundle->missing = cJSON_CreateArray();
    bundle->scratch = text_new("%s/hbm-bundle-XXXXXX", place && *place ? place : "/tmp");
    if (!bundle->scratch || !mkdtemp(bundle->scratch)) {
        int status = report(bundle->cli, HBM_E_IO, "no directory %s can be made: %m; set TMPDIR to one that can be written",
                            bundle->scratch ? bundle->scratch : "");
        free(TAKE_PTR(bundle->scratch));
        return status;
    }
    bundle->name = text_new("hbm-support-%s", now);
    if (!bundle->name)
        out_of_memory();
    _cleanup_free_ char *folder = path_in(bundle, "");
    return mkdir(folder, 0700) ? report(bundle->cli, HBM_E_IO, "%s cannot be made: %m; see TMPDIR", folder) : 0;
}

/* In the child. Its alarm outlives the exec; 0 seconds are no limit. */
__attribute__((noreturn)) static void become(const struct bundle *bundle, const struct part *part, int out, unsigned seconds)
{
    const char *argv[12];
    unsigned n = 0;

    argv[n++] = part->program ? part->program : "hbmctl";
    if (!part->program && bundle->cli->runtime_dir) {
        argv[n++] = "--runtime-dir";
        argv[n++] = bundle->cli->runtime_dir;
    }
    for (unsigned i = 0; i < 8 && part->arguments[i]; i++)
        argv[n++] = part->arguments[i];
    argv[n] = NULL;
    alarm(seconds);
    if (dup2(out, STDOUT_FILENO) >= 0 && dup2(bundle->errors, STDERR_FILENO) >= 0) {
        execvp(part->program ? part->program : "/proc/self/exe", (char **)argv);
        dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
    }
    _exit(127);
}

static pid_t start(const struct bundle *bundle, const struct part *part, int out, unsigned seconds)
{
    pid_t child = fork();

    if (child == 0)
        become(bundle, part, out, seconds);
    return child;
}

/* A sentence, or NULL where it ended well. */
static char *outcome(const struct bundle *bundle, const struct part *part, pid_t child)
{
    int status;

    if (child < 0)
        return text_new("it could not be started");
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return text_new("it cannot be waited for: %s", strerror(errno));
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return text_new("it did not end within %u s", bundle->seconds);
    if (WIFSIGNALED(status))
        return text_new("it was ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) == 127)
        return text_new("there is no %s", part->program);
    /* A doctor that finds something has done its work. */
    bool well = WEXITSTATUS(status) == 0 || !strcmp(part->file, "doctor.txt");
    return well ? NULL : text_new("it ended with %d, see errors.txt", WEXITSTATUS(status));
}

static pid_t start_part(const struct bundle *bundle, const struct part *part)
{
    _cleanup_free_ char *path = path_in(bundle, part->file);
    _cleanup_fd_ int out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    return out < 0 ? -1 : start(bundle, part, out, bundle->seconds);
}

static void finish_part(struct bundle *bundle, const struct part *part, pid_t child)
{
    _cleanup_free_ char *why = outcome(bundle, part, child);

    bundle->n += !why;
    if (!why)
        return;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "file", part->file);
    cJSON_AddStringToObject(row, "why", why);
    cJSON_AddItemToArray(bundle->missing, row);
}

/* All at once: together they take no longer than the slowest. */
static void add_parts(struct bundle *bundle)
{
    pid_t children[N_PARTS];

    for (size_t i = 0; i < N_PARTS; i++)
        children[i] = start_part(bundle, &parts[i]);
    for (size_t i = 0; i < N_PARTS; i++)
        finish_part(bundle, &parts[i], children[i]);
}

/* ---- A log that is a file: of a daemon that was started by hand ---- */

static int daemon_pid(const struct bundle *bundle)
{
    _cleanup_free_ char *path = path_in(bundle, "status.json");
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[65536];
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    text[n < 0 ? 0 : n] = 0;
    _cleanup_json_ cJSON *status = cJSON_Parse(text);
    const cJSON *pid = cJSON_GetObjectItemCaseSensitive(status, "pid");
    return cJSON_IsNumber(pid) ? pid->valueint : 0;
}

/* What is no file of the daemon's, a pipe or a terminal, could be waited on for ever. */
static void add_log(struct bundle *bundle)
{
    int pid = daemon_pid(bundle);
    _cleanup_free_ char *log = text_new("/proc/%d/fd/2", pid), *bytes = text_new("--bytes=%u", LOG_BYTES);
    struct stat status;

    if (!log || !bytes)
        out_of_memory();
    if (pid && stat(log, &status) == 0 && S_ISREG(status.st_mode)) {
        const struct part part = {"log.txt", "tail", {bytes, log}};
        finish_part(bundle, &part, start_part(bundle, &part));
    }
}

/* ---- The archive ---- */

static int pack(const struct bundle *bundle, const char *path)
{
    const struct part tar = {
        "", "tar", {"--create", "--file=-", "--owner=0", "--group=0", "--directory", bundle->scratch, bundle->name}};
    _cleanup_(out_file_clear) struct out_file file = {.fd = -1};
    char why[OUT_FILE_WHY];

    if (out_file_open(&file, path, why) < 0)
        return report(bundle->cli, HBM_E_IO, "%s was not written: %s", path, why);
    file.mode = 0600; /* an administrator's has everybody's names */
    _cleanup_free_ char *failed = outcome(bundle, &tar, start(bundle, &tar, file.fd, 0));
    if (failed)
        return report(bundle->cli, HBM_E_IO, "%s was not written: tar: %s; free space or write elsewhere", path, failed);
    return out_file_commit(&file, why) < 0 ? report(bundle->cli, HBM_E_IO, "%s was not written: %s", path, why) : EXIT_DONE;
}

static void tell(const struct bundle *bundle, const char *path)
{
    const cJSON *row;

    if (bundle->cli->json) {
        _cleanup_json_ cJSON *answer = cJSON_CreateObject();
        cJSON_AddStringToObject(answer, "file", path);
        cJSON_AddNumberToObject(answer, "parts", bundle->n);
        cJSON_AddItemReferenceToObject(answer, "missing", bundle->missing);
        report_json(answer);
        return;
    }
    printf("%s: %u parts, for your eyes and those that you send it to\n", path, bundle->n);
    cJSON_ArrayForEach(row, bundle->missing)
        printf("  without %s: %s\n", cJSON_GetStringValue(row->child), cJSON_GetStringValue(row->child->next));
}

int run_support_bundle(const struct cli *cli)
{
    _cleanup_(remove_scratch) struct bundle bundle = {.cli = cli, .errors = -1};
    _cleanup_free_ char *here = getcwd(NULL, 0), *path = NULL;

    /* A daemon that hangs is what bundles are made of. */
    bundle.seconds = (unsigned)fmin(fmax(ceil(cli_number(cli, "--patience", 20)), 1), 3600);
    interrupt_watch();
    int status = make_scratch(&bundle);
    if (status)
        return status;
    path = !cli->n_words           ? text_new("%s/%s.tar", here ? here : ".", bundle.name)
           : *cli->words[0] == '/' ? text_new("%s", cli->words[0])
                                   : text_new("%s/%s", here ? here : ".", cli->words[0]);
    _cleanup_free_ char *list = path_in(&bundle, "errors.txt");
    bundle.errors = open(list, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (!path || bundle.errors < 0)
        return report(cli, HBM_E_IO, "%s cannot be written: %m; see TMPDIR", list);
    add_parts(&bundle);
    add_log(&bundle);
    if (interrupted())
        return report(cli, HBM_E_CANCELLED, "interrupted: nothing was written");
    status = pack(&bundle, path);
    if (!status)
        tell(&bundle, path);
    return status;
}
