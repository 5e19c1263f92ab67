/* What accounts count, as an enum. */
#pragma once

enum account_thing {
#define THING(NAME, name, words) ACCOUNT_##NAME,
#include "daemon/core/thing.def"
#undef THING
    ACCOUNT_THINGS
};
