/* hbmd.conf: `key = value` lines, `#` and `;` comments. inih parses; the reader below counts lines, because inih
 * reports only the first error, and finds the lines that inih skips in silence. */
#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "daemon/base/cleanup.h"

struct reading {
    struct config *config;
    const char *path;
    FILE *file;
    unsigned line, errors;
    unsigned set_at[CONFIG_KEYS]; /* line of each key, 0 = not yet */
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
        complain(reading, "there are no [sections]: write the keys without one");
        *into = '\0';
    } else if (!is_assignment(into)) {
        complain(reading, "this is no 'key = value' line");
        *into = '\0';
    }
    return into;
}

static unsigned *line_of(struct reading *reading, const char *key)
{
    for (unsigned i = 0; i < CONFIG_KEYS; i++)
        if (!strcmp(config_options[i].key, key))
            return &reading->set_at[i];
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
    if (config_set(reading->config, key, value, source, why) < 0)
        complain(reading, why);
    return 1;
}

unsigned config_read(struct config *config, const char *path,
                     void (*report)(void *context, unsigned line, const char *why), void *context)
{
    struct reading reading = {.config = config, .path = path, .report = report, .context = context};

    reading.file = fopen(path, "re");
    if (!reading.file) {
        complain(&reading, strerror(errno));
        return reading.errors;
    }
    ini_parse_stream(read_line, &reading, take, &reading);
    fclose(reading.file);
    return reading.errors;
}
