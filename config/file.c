/* hbmd.conf: `key = value` lines, `[listener NAME]` sections, `#` and `;` comments. inih parses the lines; the
 * reader below counts them, because inih reports only the first error, finds those that inih skips in silence, and
 * keeps the sections, whose names inih would cut. */
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "config/config.h"
#include "daemon/base/cleanup.h"

#define FILE_BYTES_MAX (1 << 20)

struct reading {
    struct config *config;
    const char *path;
    FILE *file;
    unsigned line, errors;
    struct config_listener *listener;                               /* the section read; NULL: none yet */
    unsigned set_at[CONFIG_KEYS], set_in_section_at[LISTENER_KEYS]; /* line of each key, 0 = not yet */
    void (*report)(void *context, unsigned line, const char *why);
    void *context;
};

static void complain(struct reading *reading, const char *why)
{
    reading->errors++;
    reading->report(reading->context, reading->line, why);
}

static bool is_assignment(const char *line)
{
    line += strspn(line, " \t\r\n\xef\xbb\xbf");
    return *line == '\0' || *line == '#' || *line == ';' || strpbrk(line, "=:");
}

/* "[listener NAME]": what follows is that listener's. */
static void open_section(struct reading *reading, char *line)
{
    char name[CONFIG_LISTENER_NAME_MAX + 8], why[CONFIG_WHY_MAX];
    int end = 0;

    reading->listener = NULL;
    memset(reading->set_in_section_at, 0, sizeof(reading->set_in_section_at));
    if (sscanf(line, " [listener %39[^] \t] ] %n", name, &end) != 1 || !end ||
        (line[end] && !strchr("#;", line[end]))) {
        complain(reading, "this section is none: there is only [listener NAME]");
        return;
    }
    for (const struct config_listener *other = reading->config->listeners; other; other = other->next) {
        if (strcmp(other->name, name))
            continue;
        snprintf(why, sizeof(why), "listener %s was given in line %u already", name, other->line);
        complain(reading, why);
        break;
    }
    reading->listener = config_listener_new(reading->config, name, why);
    if (!reading->listener) {
        complain(reading, why);
        reading->listener =
            config_listener_new(reading->config, "nameless", why); /* its keys are judged all the same */
    }
    if (reading->listener)
        reading->listener->line = reading->line;
}

/* What only the whole file can tell, said of the section's line. */
static void check_listeners(struct reading *reading)
{
    char why[CONFIG_WHY_MAX];

    for (const struct config_listener *each = reading->config->listeners; each; each = each->next) {
        reading->line = each->line;
        if (*each->directory != '/') {
            snprintf(why, sizeof(why), "listener %s needs a directory of its own, with its whole path", each->name);
            complain(reading, why);
        }
        for (const struct config_listener *other = reading->config->listeners; other != each; other = other->next) {
            if (strcmp(other->directory, each->directory) || !*each->directory)
                continue;
            snprintf(why, sizeof(why), "listener %s has the directory of listener %s", each->name, other->name);
            complain(reading, why);
        }
    }
}

/* fgets for inih. A refused line is handed on empty. */
static char *read_line(char *into, int room, void *stream)
{
    struct reading *reading = stream;

    if (!fgets(into, room, reading->file)) {
        if (ferror(reading->file))
            complain(reading, strerror(errno));
        return NULL;
    }
    reading->line++;
    size_t length = strlen(into);
    if (length && into[length - 1] != '\n' && !feof(reading->file)) {
        int c;
        do
            c = fgetc(reading->file);
        while (c != '\n' && c != EOF);
        if (!strchr("#;", into[strspn(into, " \t")]))
            complain(reading, "the line is too long, or holds a NUL byte");
        *into = '\0';
    } else if (into[strspn(into, " \t")] == '[') {
        open_section(reading, into);
        *into = '\0';
    } else if (!is_assignment(into)) {
        complain(reading, "this is no 'key = value' line");
        *into = '\0';
    }
    return into;
}

static unsigned *line_of(struct reading *reading, const char *key)
{
    const struct config_option *options = reading->listener ? config_listener_options : config_options;
    unsigned *set_at = reading->listener ? reading->set_in_section_at : reading->set_at;

    for (unsigned i = 0; i < (reading->listener ? LISTENER_KEYS : CONFIG_KEYS); i++)
        if (!strcmp(options[i].key, key))
            return &set_at[i];
    return NULL;
}

static int take(void *user, const char *section, const char *key, const char *value)
{
    struct reading *reading = user;
    unsigned *line = line_of(reading, key);
    char why[CONFIG_WHY_MAX], source[CONFIG_TEXT_MAX];

    (void)section;
    if (line && *line) {
        snprintf(why, sizeof(why), "%.64s was given in line %u already", key, *line);
        complain(reading, why);
        return 1;
    }
    if (line)
        *line = reading->line;
    snprintf(source, sizeof(source), "%.160s:%u", reading->path, reading->line);
    if ((reading->listener ? config_listener_set(reading->listener, key, value, source, why)
                           : config_set(reading->config, key, value, source, why)) < 0)
        complain(reading, why);
    return 1;
}

/* A reload reads it on the loop, which must not wait for a FIFO's writer nor read what has no end. NULL with *why.
 */
static FILE *open_file(const char *path, const char **why)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;

    *why = "it is no regular file of up to 1 MiB";
    if (fd >= 0 && fstat(fd, &status) == 0 && (!S_ISREG(status.st_mode) || status.st_size > FILE_BYTES_MAX))
        return NULL;
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (file)
        fd = -1; /* consume fd */
    else
        *why = strerror(errno);
    return file;
}

unsigned config_read(struct config *config, const char *path,
                     void (*report)(void *context, unsigned line, const char *why), void *context)
{
    struct reading reading = {.config = config, .path = path, .report = report, .context = context};

    const char *why;

    reading.file = open_file(path, &why);
    if (!reading.file) {
        complain(&reading, why);
        return reading.errors;
    }
    ini_parse_stream(read_line, &reading, take, &reading);
    fclose(reading.file);
    check_listeners(&reading);
    return reading.errors;
}
