/* Names and selectors, as clients and operators write them, against a furnished catalog that one may see and
 * another may not. One text an input, and a second one to rename to. */
#include "daemon/rpc/encoding.h"
#include "daemon/rpc/method.h"
#include "tests/fuzz/world.h"

static struct world world;

/* What a valid name promises to everyone who prints or compares it. */
static void check_name(const char *name)
{
    const char *why = NULL;

    if (!name_is_valid(name, &why)) {
        CHECK(why && *why && !model_name_is_valid(name, &why));
        return;
    }
    size_t size = strlen(name);
    CHECK(size && size < HBM_NAME_MAX && *name != '~' && *name != '/' && name[size - 1] != '/');
    CHECK(!strpbrk(name, "*?[\n\t\x7f\x1b") && !strstr(name, "//") && !strstr(name, "/../"));
    if (model_name_is_valid(name, &why))
        CHECK(!strpbrk(name, "/:~@"));
}

static void select_as(const struct principal *who, const char *sel)
{
    struct selection selection;
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(world.core, who, sel, &selection, detail);

    if (error) {
        CHECK(*detail && memchr(detail, 0, sizeof(detail)) && !selection.n);
        return;
    }
    CHECK(selection.n);
    for (size_t i = 0; i < selection.n; i++)
        CHECK(buffer_visible(selection.buffers[i], who));
    selection_clear(&selection);
}

/* A text in a block of its own size. */
static char *cut(const uint8_t *bytes, size_t size)
{
    char *text = malloc(size + 1);

    CHECK(text);
    memcpy(text, bytes, size);
    text[size] = 0;
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const uint8_t *end = memchr(bytes, '\n', size);
    size_t first = end ? (size_t)(end - bytes) : size;
    char *name = cut(bytes, first), *to = cut(bytes + first, size - first);
    const char *other = *to ? to + 1 : to, *why = NULL;
    struct hbm_encoding encoding;
    uint64_t id;

    if (!world.core) { /* once: selecting changes nothing, and renaming is undone below */
        world_begin(&world, false);
        world_furnish(&world);
        world.lowest_fd = -1; /* libFuzzer opens some of its own between inputs */
    }
    check_name(name);
    check_name(other);
    select_as(&alice, name);
    select_as(&bob, name);
    select_as(&root, name);
    if (encoding_parse(name, *other ? other : NULL, &encoding, &why))
        CHECK(hbm_codec_name(encoding.codec));
    else
        CHECK(why && *why);
    if (param_id(name, &id))
        CHECK(!strncmp(name, "0x", 2) && strlen(name) <= 18);
    if (strlen(name) < HBM_NAME_MAX && strlen(other) < HBM_NAME_MAX) {
        verb_rename(world.core, world_call(alice, NULL), name, other);
        verb_rename(world.core, world_call(bob, NULL), other, name);
        world_digest(&world);
        verb_rename(world.core, world_call(alice, NULL), other, name);
        /* Whatever it was called meanwhile: as it was, for the next input. */
        world_step(&world, 100);
        if (!names_find(&world.core->buffer_names, alice.owner, "w") ||
            !names_find(&world.core->model_names, alice.owner, "m") ||
            !names_find(&world.core->buffer_names, alice.owner, "m/x")) {
            world_end(&world);
            world.core = NULL;
        }
    }
    free(name);
    free(to);
    return 0;
}
