/* The daemon's devices, as grants number them. */
#include <errno.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/session.h"

struct device_table *devices_new(unsigned n)
{
    struct device_table *table = calloc(1, sizeof(*table) + n * sizeof(table->devices[0]));

    if (table)
        table->n = n;
    return table;
}

void devices_note(struct device_table *table, unsigned index, const struct wire_device_reply *reply)
{
    memcpy(table->devices[index].uuid, reply->uuid, sizeof(reply->uuid) - 1);
    table->devices[index].is_cuda = reply->is_cuda;
}

void devices_take(hbm_session *session, struct device_table *table)
{
    struct device_table *now = session->devices;

    if (now && now->n == table->n && !memcmp(now->devices, table->devices, table->n * sizeof(table->devices[0]))) {
        free(table);
        return;
    }
    table->older = now; /* mappings point at its names */
    session->devices = table;
}

void devices_free(hbm_session *session)
{
    for (struct device_table *table = session->devices, *older; table; table = older) {
        older = table->older;
        free(table);
    }
}

static int ask_device(hbm_session *session, unsigned index, struct wire_device_reply *reply)
{
    struct wire_device_request request = {.index = index};
    int error = conn_call_again(&session->conn, WIRE_DEVICE, &request, NULL, reply, NULL);

    reply->uuid[sizeof(reply->uuid) - 1] = 0;
    reply->name[sizeof(reply->name) - 1] = 0;
    return error;
}

int devices_learn(hbm_session *session, unsigned n)
{
    struct device_table *table = n <= DEVICES_MAX ? devices_new(n) : NULL;
    int error = table ? 0 : set_system_error("malloc", ENOMEM);

    for (unsigned i = 0; i < n && !error; i++) {
        struct wire_device_reply reply;
        error = ask_device(session, i, &reply);
        if (!error)
            devices_note(table, i, &reply);
    }
    if (error)
        free(table);
    else
        devices_take(session, table);
    return error;
}

int hbm_device_count(hbm_session *session)
{
    int error = session_check(session);

    return error ? error : (int)session->devices->n;
}

int hbm_device_get(hbm_session *session, unsigned index, struct hbm_device_info *ret)
{
    struct wire_device_reply reply;
    int error = session_check(session);

    if (error)
        return error;
    if (!ret)
        return set_error(HBM_E_INVALID, "ret is NULL");
    if (index >= session->devices->n)
        return set_error(HBM_E_NO_DEVICE, "index %u of %u", index, session->devices->n);
    error = ask_device(session, index, &reply);
    if (error)
        return error;
    *ret = (struct hbm_device_info){
        .is_cuda = reply.is_cuda != 0,
        .ready = reply.ready != 0,
        .capacity = reply.capacity,
        .used = reply.used,
    };
    memcpy(ret->uuid, reply.uuid, sizeof(ret->uuid));
    memcpy(ret->name, reply.name, sizeof(ret->name));
    return 0;
}
