#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/core/pressure.h"
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

static bool same_listeners(const struct config_listener *a, const struct config_listener *b)
{
    for (; a && b; a = a->next, b = b->next)
        if (strcmp(a->name, b->name) || memcmp(a->text, b->text, sizeof(a->text)))
            return false;
    return !a && !b;
}

/* The sections are what the sockets were made by: all of them stay until the next start. */
static void keep_listeners(struct config *now, struct config *next)
{
    if (!same_listeners(now->listeners, next->listeners))
        log_warning("the [listener] sections have changed: that takes a restart");
    config_clear(next);
    next->listeners = TAKE_PTR(now->listeners);
}

void server_reload(struct server *server)
{
    struct config next;

    if (server->stopping || !server->listening)
        return;
    notify_reloading();
    if (!setup_load(server->setup, &next)) {
        log_write(LOG_LEVEL_ERROR, MESSAGE_CONFIG_REFUSED,
                  "the configuration has errors: the one from before stays in effect");
        config_clear(&next);
        server_say_ready(server, "; the last reload failed");
        return;
    }
    keep_fixed(&server->config, &next);
    keep_listeners(&server->config, &next);
    server->config = next;
    server->core->limits = server_limits(&next);
    list_for_each (node, &server->core->devices)
        for (unsigned tier = 0; tier < HBM_TIERS; tier++)
            pressure_wake(list_entry(node, struct device, node), tier);
    listeners_limit(server);
    devices_limit(server);
    devices_pool(server);
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
    for (const struct config_listener *each = server->config.listeners; each; each = each->next) {
        for (unsigned i = 0; i < LISTENER_KEYS; i++) {
            char key[CONFIG_LISTENER_NAME_MAX + 40];
            snprintf(key, sizeof(key), "%s.%s", each->name, config_listener_options[i].key);
            row(to, key, each->text[i], each->source[i]);
        }
    }
}
