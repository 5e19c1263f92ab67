/* A row for each of many buffers, some in each turn of the loop: a list of megabytes keeps nobody waiting. What was
 * freed in between has no row; what came since has none either. Where nothing else can come into the line, rows are
 * sent as they are written, and no faster than they are read: so such a list may be of any length, and takes no
 * memory for all of it. */
#pragma once

#include "daemon/core/buffer.h"
#include "daemon/rpc/rows.h"

struct request;
struct listing;

typedef void (*listing_row)(struct writer *writer, struct lease_index *index, const struct principal *who,
                            const struct buffer *buffer);

/* Room for n. NULL: memory is out, and the request has its answer. */
struct listing *listing_new(struct request *request, size_t n, listing_row row);
void listing_add(struct listing *listing, const struct buffer *buffer);
/* Answers the request, now or in later turns of its connection. Takes the listing. */
void listing_start(struct listing *listing);
/* The next rows. The listing may be gone when this returns. */
void listing_go_on(struct listing *listing);
/* NULL is fine; returns NULL. */
struct listing *listing_free(struct listing *listing);
