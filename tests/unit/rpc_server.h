/* What the operators' socket does with a core behind it; run by test_rpc.c. */
#pragma once

#include "tests/unit/rpc_fixture.h"

static void a_request_is_answered_under_its_own_id(void **state)
{
    expect(*state, ASK("7", LS), "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":[]}\n");
    expect(*state, ASK("\"a\\\"\xc3\xa9\"", LS), "{\"jsonrpc\":\"2.0\",\"id\":\"a\\\"\xc3\xa9\",\"result\":[]}\n");
    expect(*state, ASK("null", LS), "{\"jsonrpc\":\"2.0\",\"id\":null,\"result\":[]}\n");
    expect(*state, ASK("9007199254740992", LS), "{\"jsonrpc\":\"2.0\",\"id\":9007199254740992,\"result\":[]}\n");
    expect(*state, ASK("1.5", LS), "{\"jsonrpc\":\"2.0\",\"id\":1.5,\"result\":[]}\n");
}

static void lines_are_answered_in_order_and_the_last_needs_no_newline(void **state)
{
    struct fixture *fixture = *state;
    char text[4096];
    int fd = client_open(fixture);

    say(fd, ASK("1", LS) ASK("2", LS) "{\"jsonrpc\":\"2.0\",\"id\":3," LS "}");
    shutdown(fd, SHUT_WR);
    assert_string_equal(hear(fixture, fd, text, sizeof(text)), "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[]}\n"
                                                               "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":[]}\n"
                                                               "{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":[]}\n");
    assert_int_equal(recv(fd, text, sizeof(text), 0), 0);
    close(fd);
}

static void notifications_get_no_answer_not_even_an_error(void **state)
{
    expect(*state, NOTIFY(LS) NOTIFY("\"method\":\"no.such\"") NOTIFY(LS ",\"params\":[1,2,3]"), "");
}

static void errors_carry_the_codes_of_the_specification(void **state)
{
    expect_part(*state, "{\"jsonrpc\": \"2.0\", \"method\": \"foobar, \"params\": \"bar\", \"baz]\n",
                "\"id\":null,\"error\":{\"code\":-32700,");
    expect_part(*state, NOTIFY("\"method\":1,\"params\":\"bar\""), "\"id\":null,\"error\":{\"code\":-32600,");
    expect_part(*state, ASK("1", LS ",\"params\":\"bar\""), "\"id\":1,\"error\":{\"code\":-32600,");
    expect_part(*state, "{\"jsonrpc\":\"1.0\",\"id\":1," LS "}\n", "\"id\":1,\"error\":{\"code\":-32600,");
    expect_part(*state, "{\"id\":1," LS "}\n", "\"id\":1,\"error\":{\"code\":-32600,");
    expect_part(*state, ASK("{}", LS), "\"id\":null,\"error\":{\"code\":-32600,");
    expect_part(*state, ASK("1e300", LS), "\"id\":null,\"error\":{\"code\":-32600,");
    expect_part(*state, ASK("1", "\"method\":\"hbm.nothing\""), "\"id\":1,\"error\":{\"code\":-32601,");
    expect_part(*state, ASK("1", "\"method\":\"HBM.LS\""), "\"id\":1,\"error\":{\"code\":-32601,");
    expect_part(*state, ASK("1", LS ",\"params\":{\"globb\":\"*\"}"), "\"id\":1,\"error\":{\"code\":-32602,");
    expect_part(*state, ASK("1", LS ",\"params\":{\"glob\":\"*\",\"glob\":\"*\"}"),
                "\"id\":null,\"error\":{\"code\":-32700,");
    expect_part(*state, "17\n", "\"id\":null,\"error\":{\"code\":-32600,");
}

static void our_own_errors_say_what_and_what_to_do(void **state)
{
    expect_part(*state, ASK("1", "\"method\":\"hbm.show\",\"params\":[\"nothing\"]"),
                "\"error\":{\"code\":-4,\"message\":\"nothing of that name or id is there for you: nothing; see "
                "`hbmctl ls`, `ops` or `sessions` for what you may use\",\"data\":{\"error\":\"NOT_FOUND\","
                "\"detail\":\"nothing\",\"remedy\":\"see `hbmctl ls`, `ops` or `sessions` for what you may use\"}}");
}

static void a_batch_is_answered_by_one_array(void **state)
{
    expect(*state,
           "[{\"jsonrpc\":\"2.0\",\"id\":1," LS "},{\"jsonrpc\":\"2.0\"," LS
           "},{\"jsonrpc\":\"2.0\",\"id\":\"2\"," LS "}]\n",
           "[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[]},{\"jsonrpc\":\"2.0\",\"id\":\"2\",\"result\":[]}]\n");
    expect(*state, "[{\"jsonrpc\":\"2.0\"," LS "},{\"jsonrpc\":\"2.0\"," LS "}]\n", "");
    expect_part(*state, "[]\n", "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,");
    expect_part(*state, "[1]\n", "[{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,");
    expect_part(*state, "[1,2]\n", "}},{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,");
    expect_part(*state, "[[]]\n", "[{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,");
}

static struct op *begin_op(struct fixture *fixture)
{
    struct principal who = {.owner = {0, getuid()}};
    char detail[HBM_DETAIL_MAX];
    int error = 0;
    struct op *op = op_new(fixture->core, "offload", &who, NULL, 0, &error, detail);

    assert_non_null(op);
    return op;
}

static void ask_to_wait(int fd, const char *id, const struct op *op, const char *more)
{
    char text[256];

    snprintf(text, sizeof(text),
             "{\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"hbm.wait\",\"params\":{\"op\":\"0x%llx\"%s}}\n", id,
             (unsigned long long)op->id, more);
    say(fd, text);
}

static void an_answer_that_waits_lets_later_ones_pass(void **state)
{
    struct fixture *fixture = *state;
    struct op *op = begin_op(fixture);
    char text[4096];
    int fd = client_open(fixture);

    ask_to_wait(fd, "1", op, "");
    say(fd, ASK("2", LS));
    assert_string_equal(hear(fixture, fd, text, sizeof(text)), "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":[]}\n");
    op_end(op, 0, "");
    assert_non_null(strstr(hear(fixture, fd, text, sizeof(text)), "\"id\":1,\"result\":{\"op\":"));
    assert_non_null(strstr(text, "\"state\":\"done\""));
    close(fd);
}

static void a_batch_waits_for_the_last_of_its_answers(void **state)
{
    struct fixture *fixture = *state;
    struct op *op = begin_op(fixture);
    char text[4096], question[512];
    int fd = client_open(fixture);

    snprintf(question, sizeof(question),
             "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hbm.wait\",\"params\":[\"0x%llx\"]},"
             "{\"jsonrpc\":\"2.0\",\"id\":2," LS "}]\n" ASK("3", LS),
             (unsigned long long)op->id);
    say(fd, question);
    assert_string_equal(hear(fixture, fd, text, sizeof(text)), "{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":[]}\n");
    op_end(op, HBM_E_NO_SPACE, "no room on /spill");
    hear(fixture, fd, text, sizeof(text));
    assert_memory_equal(text, "[{\"jsonrpc\":\"2.0\",\"id\":2,", 25);
    assert_non_null(strstr(text, "\"state\":\"failed\",\"error\":\"NO_SPACE\",\"detail\":\"no room on /spill\""));
    close(fd);
}

static void waiting_ends_with_its_time(void **state)
{
    struct fixture *fixture = *state;
    struct op *op = begin_op(fixture);
    char text[4096];
    int fd = client_open(fixture);

    ask_to_wait(fd, "1", op, ",\"timeout_seconds\":2.5");
    assert_string_equal(hear(fixture, fd, text, sizeof(text)), "");
    clock_ms += 2499;
    core_tick(fixture->core);
    assert_string_equal(hear(fixture, fd, text, sizeof(text)), "");
    clock_ms += 1;
    core_tick(fixture->core);
    assert_non_null(strstr(hear(fixture, fd, text, sizeof(text)), "\"state\":\"running\""));
    op_end(op, 0, "");
    assert_string_equal(hear(fixture, fd, text, sizeof(text)), "");
    close(fd);
}

static void a_reader_that_goes_takes_its_waits_along(void **state)
{
    struct fixture *fixture = *state;
    struct op *op = begin_op(fixture);
    int fd = client_open(fixture);

    ask_to_wait(fd, "1", op, "");
    ask_to_wait(fd, "2", op, ",\"timeout_seconds\":1");
    say(fd, "[{\"jsonrpc\":\"2.0\",\"id\":1," LS "},");
    turn(fixture, 10);
    assert_false(list_empty(&op->waiters));
    close(fd);
    turn(fixture, 10);
    assert_true(list_empty(&op->waiters));
    clock_ms += 10000;
    core_tick(fixture->core);
    op_end(op, 0, "");
    turn(fixture, 10);
}

static void operators_beyond_the_bound_hear_why(void **state)
{
    struct fixture *fixture = *state;
    char text[4096];
    int fds[64], late;

    for (int i = 0; i < 64; i++) {
        fds[i] = client_open(fixture);
        turn(fixture, 1);
    }
    late = client_open(fixture);
    assert_non_null(strstr(hear(fixture, late, text, sizeof(text)), "\"id\":null,\"error\":{\"code\":-11,"));
    assert_int_equal(recv(late, text, sizeof(text), 0), 0);
    close(late);
    close(fds[0]);
    turn(fixture, 5);
    expect_part(fixture, ASK("1", LS), "\"result\":[]");
    for (int i = 1; i < 64; i++)
        close(fds[i]);
}

static void a_line_of_more_than_a_mebibyte_ends_the_connection_with_a_reason(void **state)
{
    struct fixture *fixture = *state;
    char block[65536], text[4096] = "";
    size_t sent = 0, heard = 0;
    int fd = client_open(fixture);
    ssize_t n;

    memset(block, 'x', sizeof(block));
    for (int i = 0; i < 20000 && sent < ((size_t)100 << 20); i++) {
        turn(fixture, 1);
        n = send(fd, block, sizeof(block), MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break;
        sent += n > 0 ? (size_t)n : 0;
    }
    assert_in_range(sent, 1 << 20, 3 << 20);
    while ((n = recv(fd, text + heard, sizeof(text) - 1 - heard, 0)) > 0)
        heard += (size_t)n;
    assert_non_null(strstr(text, "-32700"));
    close(fd);
    expect_part(fixture, ASK("1", LS), "\"result\":[]");
}

static void one_who_does_not_read_is_asked_no_more_and_harms_nobody(void **state)
{
    struct fixture *fixture = *state;
    static const char question[] = ASK("1", "\"method\":\"rpc.discover\"");
    int fd = client_open(fixture);
    size_t asked = 0;
    char text[4096];

    for (int i = 0; i < 5000; i++) {
        asked += send(fd, question, sizeof(question) - 1, MSG_NOSIGNAL) > 0;
        turn(fixture, 1);
    }
    assert_in_range(asked, 10, 4900); /* the socket is full: its requests wait in the kernel, not here */
    expect_part(fixture, ASK("1", LS), "\"result\":[]");
    close(fd);
    turn(fixture, 10);
    expect_part(fixture, ASK("1", "\"method\":\"hbm.status\""), "\"version\":");
    (void)text;
}

static void a_subscriber_hears_events_and_one_who_stops_is_dropped(void **state)
{
    struct fixture *fixture = *state;
    char text[8192];
    int fd = client_open(fixture);

    say(fd, ASK("1", "\"method\":\"hbm.subscribe\"") ASK("2", "\"method\":\"hbm.subscribe\""));
    assert_string_equal(
        hear(fixture, fd, text, sizeof(text)),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":true}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":true}\n");
    event_emit(&fixture->core->events, "buffer.allocated", 0x12, "w", 0, getuid(), 77, "some");
    hear(fixture, fd, text, sizeof(text));
    assert_memory_equal(text, "{\"jsonrpc\":\"2.0\",\"method\":\"hbm.event\",\"params\":{\"seq\":", 54);
    assert_non_null(strstr(
        text, "\"event\":\"buffer.allocated\",\"detail\":\"some\",\"id\":\"0x0000000000000012\",\"name\":\"w\",\"pid\":77"));
    for (int i = 0; i < 200000; i++) {
        event_emit(&fixture->core->events, "buffer.allocated", 0x12, "w", 0, getuid(), 77, "some");
        if (i % 100 == 0)
            turn(fixture, 1);
    }
    turn(fixture, 10);
    assert_true(list_empty(&fixture->core->events.subscribers));
    close(fd);
    expect_part(fixture, ASK("1", "\"method\":\"hbm.events\",\"params\":{\"limit\":2}"), "\"seq\":");
}

static void the_views_of_an_empty_core_are_empty(void **state)
{
    expect_part(*state, ASK("1", "\"method\":\"hbm.status\""),
                "\"devices\":[],\"buffers\":0,\"models\":0,\"sessions\":0,\"ops\":0");
    expect_part(*state, ASK("1", "\"method\":\"hbm.devices\""), "\"result\":[]");
    expect_part(*state, ASK("1", "\"method\":\"hbm.models\""), "\"result\":[]");
    expect_part(*state, ASK("1", "\"method\":\"hbm.sessions\""), "\"result\":[]");
    expect_part(*state, ASK("1", "\"method\":\"hbm.ops\""), "\"result\":[]");
    expect_part(*state, ASK("1", "\"method\":\"hbm.ls\",\"params\":[\"*\"]"), "\"result\":[]");
    expect_part(*state, ASK("1", "\"method\":\"hbm.events\",\"params\":{\"since\":0,\"limit\":0}"),
                "\"result\":[]");
    expect_part(*state, ASK("1", "\"method\":\"hbm.config\""),
                "[{\"key\":\"log-level\",\"value\":\"info\",\"source\":\"default\"}]");
    expect_part(*state, ASK("1", "\"method\":\"rpc.discover\""), "\"openrpc\":");
}

#define MANY 5000u

static struct buffer *make_many(struct core *core)
{
    uint64_t capacity[HBM_TIERS] = {1 << 20}, dims[] = {1};
    struct owner owner = {0, getuid()};
    struct device *device = device_add(core, "host", "host", false, capacity);
    struct extent *extent =
        extent_adopt(core, 0, device, owner, HBM_TIER_DEVICE, JOB_EXTENT_DEVICE, 1 << 16, -1);
    struct arena *arena = arena_new(core, owner, false, 0600, HBM_HANDLE_FD, "g", extent);
    struct buffer *last = NULL;

    for (unsigned i = 0; i < MANY; i++) {
        char name[16], detail[HBM_DETAIL_MAX];
        int error;
        snprintf(name, sizeof(name), "b%u.", i);
        struct buffer_spec spec = {.name = name, .dtype = HBM_U8, .rank = 1, .dims = dims, .size = 1, .keep = true};
        last = buffer_new(arena, &spec, &error, detail);
        assert_non_null(last);
    }
    return last;
}

/* FAULTS 9: tens of megabytes are half a second of the loop. */
static void a_long_list_comes_bit_by_bit_and_what_is_freed_meanwhile_is_not_in_it(void **state)
{
    struct fixture *fixture = *state;
    struct buffer *last = make_many(fixture->core);
    size_t room = (size_t)8 << 20, used = 0;
    char *text = malloc(room);
    unsigned turns = 0;
    int fd = client_open(fixture), gone = client_open(fixture);

    say(fd, ASK("1", LS) ASK("2", LS ",\"params\":[\"b7.\"]"));
    for (text[0] = 0; !strstr(text, "\n{\"jsonrpc\":\"2.0\",\"id\":2,") || text[used - 1] != '\n'; text[used] = 0) {
        turn(fixture, 1);
        turns++;
        if (turns == 5)
            buffer_free(last);
        if (turns == 6)
            expect_part(fixture, ASK("1", "\"method\":\"hbm.models\""), "\"result\":[]");
        ssize_t n = recv(fd, text + used, room - 1 - used, 0);
        used += n > 0 ? (size_t)n : 0;
    }
    assert_true(turns >= MANY / 1000);
    assert_non_null(strstr(text, "\"b0.\""));
    assert_non_null(strstr(text, "\"b4998.\""));
    assert_null(strstr(text, "\"b4999.\""));
    free(text);
    close(fd);
    say(gone, ASK("1", LS)); /* and one who goes in the middle of it */
    turn(fixture, 3);
    close(gone);
    turn(fixture, 20);
}

/* Someone who is neither root nor the daemon's user; root plays nobody for the length of connect(). */
static int start_for_another(void **state)
{
    return start_for(state, getuid() ? 0 : 1);
}

static void what_is_for_administrators_is_denied_to_others(void **state)
{
    struct fixture *fixture = *state;
    char text[4096];
    bool root = getuid() == 0;

    if (root)
        assert_int_equal(seteuid(65534), 0);
    int fd = client_open(fixture);
    if (root)
        assert_int_equal(seteuid(0), 0);
    say(fd, ASK("1", "\"method\":\"hbm.drain\""));
    assert_non_null(strstr(hear(fixture, fd, text, sizeof(text)), "\"code\":-7,"));
    say(fd, ASK("1", "\"method\":\"hbm.kick\",\"params\":[\"0x1\"]"));
    assert_non_null(strstr(hear(fixture, fd, text, sizeof(text)), "\"code\":-7,"));
    event_emit(&fixture->core->events, "buffer.allocated", 1, "secret", 0, 12345, 0, "another's");
    event_emit(&fixture->core->events, "daemon.started", 0, "open", 0, UINT32_MAX, 0, "everyone's");
    say(fd, ASK("1", "\"method\":\"hbm.events\""));
    assert_null(strstr(hear(fixture, fd, text, sizeof(text)), "secret"));
    assert_non_null(strstr(text, "open"));
    close(fd);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, start, stop)

/* Called by test_rpc.c. */
int test_rpc_server(void);

int test_rpc_server(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(a_request_is_answered_under_its_own_id),
        SERVED(lines_are_answered_in_order_and_the_last_needs_no_newline),
        SERVED(notifications_get_no_answer_not_even_an_error),
        SERVED(errors_carry_the_codes_of_the_specification),
        SERVED(our_own_errors_say_what_and_what_to_do),
        SERVED(a_batch_is_answered_by_one_array),
        SERVED(an_answer_that_waits_lets_later_ones_pass),
        SERVED(a_batch_waits_for_the_last_of_its_answers),
        SERVED(waiting_ends_with_its_time),
        SERVED(a_reader_that_goes_takes_its_waits_along),
        SERVED(operators_beyond_the_bound_hear_why),
        SERVED(a_line_of_more_than_a_mebibyte_ends_the_connection_with_a_reason),
        SERVED(one_who_does_not_read_is_asked_no_more_and_harms_nobody),
        SERVED(a_subscriber_hears_events_and_one_who_stops_is_dropped),
        SERVED(the_views_of_an_empty_core_are_empty),
        SERVED(a_long_list_comes_bit_by_bit_and_what_is_freed_meanwhile_is_not_in_it),
        cmocka_unit_test_setup_teardown(what_is_for_administrators_is_denied_to_others, start_for_another, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
