/* The LOCK round trip, for locks and for safe points. */
#pragma once

#include "client/lib/mapping.h"

#define FETCH_MAX 128 /* slots of one LOCK message */

/* A claimed mapping and the locks wanted on it. */
struct want {
    struct mapping *mapping;
    uint32_t locks;
    bool away; /* to be fetched */
};

/* Brings back those that are away, at most FETCH_MAX, in ascending slots: all or none get their locks. */
int fetch_away(hbm_session *session, const struct want *wants, unsigned n, uint32_t timeout_ms);
