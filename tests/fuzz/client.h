/* A client under fuzzing: one end of a link, and what a process of it could do. */
#pragma once

#include "daemon/wire/link.h"
#include "tests/fuzz/fill.h"
#include "tests/fuzz/life.h"

struct client {
    int fd;
    struct life life;
    struct link *link; /* as long as the server lists it */
    bool reads;
    struct principal who;
    int32_t pid;
    uint64_t session; /* 0: none was opened */
    uint8_t secret[32];
    struct known_ids known;
};

void client_connect(struct client *client, struct wire_server *server, struct principal who, int32_t pid);
void client_hello(struct client *client);
/* To another owner, with its session and the leases that the input says it has. */
void client_come_back(struct client *client, struct wire_server *server, struct input *in);
/* A request of this opcode, out of the input; an opcode that is none will do, too. */
void client_say(struct client *client, struct input *in, uint32_t opcode);
void client_say_noise(struct client *client, struct input *in);
/* Reads what came: every packet of ours is one that messages.def promises. */
void client_hear(struct client *client);
/* What only the client's own half of the shared page can do. */
void client_scribble(struct client *client, struct wire_server *server, struct input *in);
