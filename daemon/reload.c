#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/server.h"

/* Keys that are read at start only keep what they have, in the configuration shown too. */
static void keep_fixed(const struct config *now, struct config *next)
{
    char why[CONFIG_WHY_MAX];

    for (unsigned i = 0; i < CONFIG_KEYS; i++) {
        if (config_options[i].reload || !strcmp(now->text[i], next->text[i]))
            continue;
        log_warning("%s: %s = %s takes a restart; until then it stays %s", next->source[i], config_options[i].key,
                    next->text[i], *now->text[i] ? now->text[i] : "empty");
        config_set(next, config_options[i].key, now->text[i], now->source[i], why);
    }
}

void server_reload(struct server *server)
{
    struct config next;

    if (server->stopping || !server->listening)
        return;
    notify_reloading();
    if (!setup_load(server->setup, &next)) {
        log_error("the configuration has errors: the one from before stays in effect");
        server_say_ready(server, "; the last reload failed");
        return;
    }
    keep_fixed(&server->config, &next);
    server->config = next;
    server->core->limits = server_limits(&next);
    log_set_level(next.log_level);
    log_info("the configuration was read again");
    server_say_ready(server, "");
}

void server_each_option(void *context,
                        void (*row)(void *to, const char *key, const char *value, const char *source), void *to)
{
    const struct server *server = context;

    for (unsigned i = 0; i < CONFIG_KEYS; i++) {
        const char *value = server->config.text[i];
        if (i == CONFIG_runtime_dir)
            value = server->runtime_dir;
        else if (i == CONFIG_state_dir)
            value = server->state_dir;
        row(to, config_options[i].key, value, server->config.source[i]);
    }
}
