/* The control thread: reads packets, refuses or queues them, never waits for work. */
#pragma once

/* Serves until the owner closes its end; the exit code. */
int control_serve(int fd);
