/* Watches the process of each session by its pidfd. The watch belongs to the session and outlives the link: a
 * client that hung up is quiescent only once its process has ended. */
#pragma once

#include "daemon/core/session.h"
#include "daemon/wire/server.h"

/* 0 or -errno. Ends by itself with the process or the session, whichever goes first. */
int watch_session(struct wire_server *server, struct session *session);
/* Ends all of them: the server goes. */
void watch_clear(struct wire_server *server);
