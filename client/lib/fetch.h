/* The LOCK round trip, for locks and for safe points. */
#pragma once

#include "client/lib/mapping.h"
#include "proto/messages.h"

/* A claimed mapping and the locks wanted on it. */
struct want {
    struct mapping *mapping;
    uint32_t locks;
    bool away; /* to be fetched */
};

/* Brings back those that are away, at most WIRE_SLOTS_MAX, in ascending slots: all or none get their locks. */
int fetch_away(hbm_session *session, const struct want *wants, unsigned n, uint32_t timeout_ms);
