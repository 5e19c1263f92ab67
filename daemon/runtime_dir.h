/* The directories: where the sockets and the ledger are, and where spill files go. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define DIR_PATH_MAX 256

/* Writes the path in effect: `configured`, or the default for this user. False with a sentence in why (256 bytes):
 * there is no default here. */
bool runtime_dir_path(const char *configured, char path[DIR_PATH_MAX], char *why);
bool state_dir_path(const char *configured, char path[DIR_PATH_MAX], char *why);

/* Makes it if it is missing, checks that it is ours alone to write, and locks it against a second daemon. Returns
 * its fd, and in *lock_fd the lock, which lasts as long as that is open. -1 with a sentence in why; then nothing
 * was touched. */
int runtime_dir_open(const char *path, int *lock_fd, char *why);
/* A listener's directory, with only its socket in it: made, checked and locked likewise, but without a file. It is to be
 * another than the runtime directory. Its fd, which holds the lock, or -1 with a sentence in why. */
int socket_dir_open(const char *path, int runtime_dir_fd, char *why);
/* Makes and checks it. */
bool state_dir_make(const char *path, char *why);
