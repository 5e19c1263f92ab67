/* hbmd.conf of any bytes: either every value that is set can be set again to the same effect, or there is an error
 * and it has a line. */
#include <sys/mman.h>
#include <unistd.h>

#include "config/config.h"
#include "tests/fuzz/input.h"

static void note(void *context, unsigned line, const char *why)
{
    unsigned *n = context;

    (void)line;
    ++*n;
    CHECK(*why && strlen(why) < CONFIG_WHY_MAX);
}

static void check(const struct config *config)
{
    static struct config again;
    char why[CONFIG_WHY_MAX];

    for (const struct config_listener *each = config->listeners; each; each = each->next)
        for (unsigned key = 0; key < LISTENER_KEYS; key++)
            CHECK(memchr(each->text[key], 0, sizeof(each->text[key])) && memchr(each->source[key], 0, sizeof(each->source[key])));
    config_defaults(&again);
    for (unsigned key = 0; key < CONFIG_KEYS; key++) {
        CHECK(memchr(config->text[key], 0, sizeof(config->text[key])));
        CHECK(memchr(config->source[key], 0, sizeof(config->source[key])));
        CHECK(!config_set(&again, config_options[key].key, config->text[key], config->source[key], why));
        CHECK(!strcmp(again.text[key], config->text[key]));
    }
#define OPTION(key, type, standard, reload, about) CHECK(!memcmp(&again.key, &config->key, sizeof(again.key)));
#include "config/options.def"
#undef OPTION
    CHECK(!config->host_bytes.percent || config_bytes(config->host_bytes, INT64_MAX) <= INT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct config config;
    unsigned told = 0;
    char path[40];
    int fd = memfd_create("config", MFD_CLOEXEC);

    CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    memset(&config, 0, sizeof(config)); /* what lies behind the end of a text is compared too */
    config_defaults(&config);
    unsigned errors = config_read(&config, path, note, &told);
    CHECK(errors == told);
    if (!errors)
        check(&config);
    config_clear(&config);
    close(fd);
    return 0;
}
