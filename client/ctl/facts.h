/* What hbmctl advise knows. NAN: it does not. */
#pragma once

#include <cjson/cJSON.h>

#include "client/ctl/cli.h"

enum fact_kind { FACT_MEASURED, FACT_COUNTED, FACT_LIVE, FACT_GIVEN };

struct facts {
#define FACT(name, kind, text) double name;
#include "client/ctl/facts.def"
#undef FACT
    char *copied; /* what lies there more than once; owned, NULL: nothing */
    char *alike;  /* what could not be compared, and why; owned, NULL: nothing */
};

struct fact_row {
    const char *name, *text;
    enum fact_kind kind;
    size_t offset;
};
/* Every fact in turn, the first for NULL, NULL after the last. */
const struct fact_row *fact_next(const struct fact_row *row);
double *fact_of(struct facts *facts, const struct fact_row *row);

/* None is known. */
void facts_begin(struct facts *facts);
void facts_clear(struct facts *facts);
/* Those of that kind to and from an object; null is what is not known. The caller owns what is returned. */
cJSON *facts_json(struct facts *facts, enum fact_kind kind);
void facts_read(struct facts *facts, enum fact_kind kind, const cJSON *object);
/* Counters become what was added since; false if the daemon restarted in between, and they are whole. */
bool facts_since(struct facts *facts, struct facts *before);

/* That row of hbm.models is that buffer's model; "~1000/m" is another owner's m. */
bool is_its_model(const cJSON *model, const cJSON *row);

struct state {
    cJSON *status;       /* hbm.status */
    const cJSON *device; /* its row there of the device that it is about */
    char *directory;     /* the daemon's state_dir */
};
/* Asks the daemon: of the words' SEL, or of all that is leased on the device. An exit status; state_clear in any case. */
int facts_ask(const struct cli *cli, struct facts *facts, struct state *state);
void state_clear(struct state *state);
