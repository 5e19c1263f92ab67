/* The configuration file: what is taken, what is refused and in which line, and that hbmd.conf documents every key.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"

struct seen {
    unsigned n;
    unsigned lines[16];
    char why[16][CONFIG_WHY_MAX];
};

static void note(void *context, unsigned line, const char *why)
{
    struct seen *seen = context;

    assert_true(seen->n < 16);
    seen->lines[seen->n] = line;
    snprintf(seen->why[seen->n++], CONFIG_WHY_MAX, "%s", why);
}

static unsigned read_text(const char *text, size_t size, struct config *config, struct seen *seen)
{
    char path[] = "/tmp/test_config.XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, size), size);
    close(fd);
    memset(seen, 0, sizeof(*seen));
    config_defaults(config);
    unsigned errors = config_read(config, path, note, seen);
    unlink(path);
    assert_int_equal(errors, seen->n);
    return errors;
}

static unsigned read_string(const char *text, struct config *config, struct seen *seen)
{
    return read_text(text, strlen(text), config, seen);
}

static void an_empty_file_leaves_the_defaults(void **state)
{
    struct config config;
    struct seen seen;

    (void)state;
    assert_int_equal(read_string("\n# nothing\n; here\n   \n", &config, &seen), 0);
    assert_int_equal(config.device, CONFIG_DEVICE_AUTO);
    assert_int_equal(config.offload_limit, 30);
    assert_int_equal(config.reclaim_seconds, 5000);
    assert_true(config.spill_encryption);
    assert_true(config.gpudirect_storage);
    assert_true(config.device_bytes.percent);
    assert_int_equal(config.device_bytes.amount, 90);
    assert_string_equal(config.source[CONFIG_device], "default");
}

static void each_type_is_taken_with_its_source(void **state)
{
    struct config config;
    struct seen seen;

    (void)state;
    assert_int_equal(
        read_string("device = host\nstate_dir= /var/spill \nlog_level=debug\nhost_bytes = 3 GiB\n"
                    "disk_bytes = 12%\naccount_buffers = 7\noffload_limit=100\nreclaim_seconds = 0.25 ; soon\n"
                    "account_disk_bytes = 1TiB\nspill_encryption = no\ngpudirect_storage = off",
                    &config, &seen),
        0);
    assert_int_equal(config.device, CONFIG_DEVICE_HOST);
    assert_string_equal(config.state_dir, "/var/spill");
    assert_int_equal(config.log_level, 7);
    assert_int_equal(config.host_bytes.amount, (uint64_t)3 << 30);
    assert_true(config.disk_bytes.percent);
    assert_int_equal(config.account_buffers, 7);
    assert_int_equal(config.offload_limit, 100);
    assert_int_equal(config.reclaim_seconds, 250);
    assert_int_equal(config.account_disk_bytes, (uint64_t)1 << 40);
    assert_false(config.spill_encryption);
    assert_false(config.gpudirect_storage);
    assert_string_equal(strrchr(config.source[CONFIG_host_bytes], ':'), ":4");
    assert_string_equal(config.text[CONFIG_host_bytes], "3 GiB");
}

static void every_error_is_reported_with_its_line(void **state)
{
    static const char text[] = "device = gpu\n"             /* 1 */
                               "# fine\n"                   /* 2 */
                               "colour = red\n"             /* 3 */
                               "no assignment\n"            /* 4 */
                               "[section]\n"                /* 5 */
                               "offload_limit = 101\n"      /* 6 */
                               "host_bytes = 5 GB\n"        /* 7 */
                               "max_sessions = -1\n"        /* 8 */
                               "reclaim_seconds = soon\n"   /* 9 */
                               "account_ops = 4\n"          /* 10 */
                               "account_ops = 5\n"          /* 11 */
                               "account_host_bytes = 5%\n"  /* 12 */
                               "spill_encryption = 1\n"     /* 13 */
                               "gpudirect_storage = on\n";  /* 14 */
    static const unsigned lines[] = {1, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14};
    struct config config;
    struct seen seen;

    (void)state;
    assert_int_equal(read_string(text, &config, &seen), 12);
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(seen.lines[i], lines[i]);
    assert_non_null(strstr(seen.why[1], "colour"));
    assert_non_null(strstr(seen.why[8], "line 10"));
}

static void sizes_at_their_ends(void **state)
{
    struct config config;
    char why[CONFIG_WHY_MAX];

    (void)state;
    config_defaults(&config);
    assert_int_equal(config_set(&config, "host_bytes", "9223372036854775807", "", why), 0);
    assert_int_equal(config_set(&config, "host_bytes", "9223372036854775808", "", why), -1);
    assert_int_equal(config_set(&config, "host_bytes", "99999999999999999999999", "", why), -1);
    assert_int_equal(config_set(&config, "host_bytes", "8388607TiB", "", why), 0);
    assert_int_equal(config_set(&config, "host_bytes", "8388608TiB", "", why), -1);
    assert_int_equal(config_set(&config, "host_bytes", "101%", "", why), -1);
    assert_int_equal(config_set(&config, "host_bytes", "", "", why), -1);
    assert_int_equal(config_set(&config, "host_bytes", " 5", "", why), -1);
    assert_int_equal(config_set(&config, "host_bytes", "0", "", why), 0);
    assert_int_equal(config_set(&config, "reclaim_seconds", "nan", "", why), -1);
    assert_int_equal(config_set(&config, "worker_patience_seconds", "1", "", why), 0);
    assert_int_equal(config_set(&config, "worker_patience_seconds", "0.9", "", why), -1);
    assert_int_equal(config_set(&config, "worker_patience_seconds", "0", "", why), -1);
    assert_int_equal(config_set(&config, "worker_patience_seconds", "never", "", why), -1);
    assert_int_equal(config_set(&config, "host_devices", "64", "", why), 0);
    assert_int_equal(config_set(&config, "host_devices", "65", "", why), -1);
    assert_int_equal(config_set(&config, "host_devices", "0", "", why), -1);
    assert_int_equal(config_set(&config, "account_ops", "4294967295", "", why), 0);
    assert_int_equal(config_set(&config, "account_ops", "4294967296", "", why), -1);
    assert_int_equal(config_bytes((struct config_size){50, true}, 7), 3);
    assert_int_equal(config_bytes((struct config_size){100, true}, UINT64_MAX), UINT64_MAX);
    assert_int_equal(config_bytes((struct config_size){7, false}, 1), 7);
}

static void long_lines_and_values_are_refused_long_comments_are_not(void **state)
{
    char text[3000];
    struct config config;
    struct seen seen;

    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "state_dir = ", 12);
    strcpy(text + 1000, "\ncolour = 1\n");
    assert_int_equal(read_string(text, &config, &seen), 2);
    assert_int_equal(seen.lines[0], 1);
    assert_int_equal(seen.lines[1], 2);
    text[0] = '#';
    assert_int_equal(read_string(text, &config, &seen), 1);
    assert_int_equal(seen.lines[0], 2);
}

static void a_NUL_byte_and_a_missing_file_are_errors(void **state)
{
    static const char text[] = "device = ho\0st\nlog_level = info\n";
    struct config config;
    struct seen seen = {0};

    (void)state;
    assert_int_equal(read_text(text, sizeof(text) - 1, &config, &seen), 1);
    assert_int_equal(seen.lines[0], 1);
    memset(&seen, 0, sizeof(seen));
    assert_int_equal(config_read(&config, "/nonexistent/hbmd.conf", note, &seen), 1);
    assert_int_equal(seen.lines[0], 0);
}

/* FAULTS 30: at a reload it is the loop that reads. */
static void what_has_no_end_or_no_writer_is_refused_at_once(void **state)
{
    char fifo[] = "/tmp/test_config.XXXXXX", large[] = "/tmp/test_config.XXXXXX";
    const char *paths[] = {"/dev/zero", "/tmp", fifo, large};
    int fd = mkstemp(large);
    struct config config;

    (void)state;
    assert_true(fd >= 0 && ftruncate(fd, (1 << 20) + 1) == 0);
    close(fd);
    close(mkstemp(fifo));
    unlink(fifo);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct seen seen = {0};
        assert_int_equal(config_read(&config, paths[i], note, &seen), 1);
        assert_non_null(strstr(seen.why[0], "regular file"));
    }
    unlink(fifo);
    unlink(large);
}

static void a_section_is_a_listener_with_its_own_keys(void **state)
{
    struct config config;
    struct seen seen;

    (void)state;
    assert_int_equal(read_string("account_buffers = 3\n[listener pods]\ndirectory = /run/pods\nsocket_mode = 0666\n"
                                 "total_device_bytes = 2GiB\n; a comment\n  [listener b.2-c]  # another\n"
                                 "directory=/run/b\naccount_buffers = 0\n",
                                 &config, &seen),
                     0);
    const struct config_listener *pods = config.listeners, *other = pods->next;
    assert_string_equal(pods->name, "pods");
    assert_string_equal(pods->directory, "/run/pods");
    assert_int_equal(pods->socket_mode, 0666);
    assert_int_equal(pods->total_device_bytes, (uint64_t)2 << 30);
    assert_string_equal(pods->source[LISTENER_account_buffers], "default");
    assert_int_equal(pods->total_objects, config.store_max / 4); /* however many users it has */
    assert_true(pods->total_unread_fds && pods->total_leases && pods->total_ops && pods->total_queue_bytes);
    assert_string_equal(other->name, "b.2-c");
    assert_int_equal(other->socket_mode, 0660);
    assert_string_equal(strrchr(other->source[LISTENER_account_buffers], ':'), ":9");
    assert_null(other->next);
    assert_int_equal(config.account_buffers, 3);
    config_clear(&config);
    assert_null(config.listeners);
}

static void every_error_of_a_section_is_reported_with_its_line(void **state)
{
    static const char text[] = "[listener a]\n"         /* 1: no directory */
                               "offload_limit = 5\n"    /* 2: no key of a section */
                               "socket_mode = 0777\n"   /* 3 */
                               "socket_mode = 660\n"    /* 4: twice */
                               "[listener a]\n"         /* 5: twice */
                               "directory = /run/a\n"   /* 6 */
                               "[listener 9]\n"         /* 7: no name */
                               "directory = /run/a\n"   /* 8: fine, but the same as 6: told of line 7 */
                               "total_ops = many\n"     /* 9 */
                               "[listener main]\n"      /* 10 */
                               "directory = run/m\n"    /* 11: told of line 10 */
                               "[speaker b]\n"          /* 12 */
                               "[listener]\n"           /* 13 */
                               "[listener b c]\n"       /* 14 */
                               "[listener b] c\n"       /* 15 */
                               "[listener b\n";         /* 16 */
    static const unsigned lines[] = {2, 3, 4, 5, 7, 9, 10, 12, 13, 14, 15, 16, 1, 7, 10};
    struct config config;
    struct seen seen;

    (void)state;
    assert_int_equal(read_string(text, &config, &seen), sizeof(lines) / sizeof(lines[0]));
    for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        assert_int_equal(seen.lines[i], lines[i]);
    assert_non_null(strstr(seen.why[0], "offload_limit"));
    assert_non_null(strstr(seen.why[12], "directory"));
    config_clear(&config);
}

/* The shipped file is its own documentation: each key once, commented out, with its default. */
static void hbmd_conf_has_every_key_with_its_default(void **state)
{
    char line[512], expected[512];
    unsigned found[CONFIG_KEYS] = {0};
    FILE *file = fopen("config/hbmd.conf", "re");

    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        if (line[0] != '#' || line[1] == ' ' || line[1] == '\n')
            continue;
        line[strcspn(line, "\n")] = '\0';
        unsigned i = 0;
        for (; i < CONFIG_KEYS; i++) {
            const char *standard = config_options[i].standard;
            snprintf(expected, sizeof(expected), "#%s =%s%s", config_options[i].key, *standard ? " " : "",
                     standard);
            if (!strcmp(line, expected))
                break;
        }
        if (i == CONFIG_KEYS)
            fail_msg("no key, or not its default: %s", line);
        found[i]++;
    }
    fclose(file);
    for (unsigned i = 0; i < CONFIG_KEYS; i++)
        if (found[i] != 1)
            fail_msg("%s is documented %u times", config_options[i].key, found[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_file_leaves_the_defaults),
        cmocka_unit_test(each_type_is_taken_with_its_source),
        cmocka_unit_test(every_error_is_reported_with_its_line),
        cmocka_unit_test(sizes_at_their_ends),
        cmocka_unit_test(long_lines_and_values_are_refused_long_comments_are_not),
        cmocka_unit_test(a_NUL_byte_and_a_missing_file_are_errors),
        cmocka_unit_test(what_has_no_end_or_no_writer_is_refused_at_once),
        cmocka_unit_test(a_section_is_a_listener_with_its_own_keys),
        cmocka_unit_test(every_error_of_a_section_is_reported_with_its_line),
        cmocka_unit_test(hbmd_conf_has_every_key_with_its_default),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
