/* hbm.accounts: who has how much, of how much. */
#include <inttypes.h>

#include "daemon/core/listener.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/rows.h"

void write_listener(struct writer *writer, struct core *core, uint32_t listener)
{
    const struct listener *found = listener_of(core, listener);

    write_string(writer, "listener", found ? found->name : NULL);
}

static void write_account(struct writer *writer, const struct account *account, bool whole)
{
    write_open(writer, NULL, '{');
    write_string(writer, "listener", account->listener->name);
    if (whole)
        write_null(writer, "uid");
    else
        write_number(writer, "uid", account->owner.uid);
    write_open(writer, "things", '[');
    for (unsigned thing = 0; thing < ACCOUNT_THINGS; thing++) {
        uint64_t limit = account_limit(account, thing);
        write_open(writer, NULL, '{');
        write_string(writer, "thing", account_thing_name(thing));
        write_number(writer, "used", account->use[thing]);
        if (limit)
            write_number(writer, "limit", limit);
        else
            write_null(writer, "limit");
        write_close(writer, '}');
    }
    write_close(writer, ']');
    write_close(writer, '}');
}

void handle_ACCOUNTS(struct request *request, const struct ACCOUNTS_args *args)
{
    const struct principal *who = &request->connection->who;
    struct writer *writer = answer_begin(request);

    (void)args;
    write_open(writer, "result", '[');
    list_for_each (node, &request->core->listeners) {
        const struct listener *listener = list_entry(node, struct listener, node);
        if (who->admin)
            write_account(writer, &listener->whole, true);
        list_for_each (inner, &request->core->accounts) {
            const struct account *account = list_entry(inner, struct account, node);
            if (account->listener == listener && (who->admin || owner_equal(account->owner, who->owner)))
                write_account(writer, account, false);
        }
    }
    write_close(writer, ']');
    answer_end(request);
}
