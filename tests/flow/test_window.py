"""A window of a declared order: the layers in it are on the device, the others leave again, and no byte is lost."""
from helpers import (Program, client, client_program, ctl_done, ctl_refused, fails, hash_of, host_only, load_layers, module_daemon, program, settled,
                     shared, sweep, used)
from test_faults_worker import Faulty
from test_prefetch import LAYER, stopped_worker, tiers, waits
from resuming import back
from wire import FORCE, UNLOCKED

OFF = 0xffffffff
N = 6


def at_rest(daemon):
    return not [op for op in daemon.rpc("hbm.ops") if op["state"] == "running"]


def stay(daemon, *layers, n=N):
    """These are on the device in the end, and no others."""
    wanted = ["device" if i in layers else "host" for i in range(n)]
    daemon.wait_for(lambda: tiers(daemon) == wanted and at_rest(daemon))
    return True


def windowed(daemon, program, ahead, behind, n=N, elements=4096):
    """One that has the model attached, nothing of it locked, and a window; and the sums of its layers."""
    if not [row for row in daemon.rpc("hbm.models") if row["name"] == "m"]:
        load_layers(daemon, "m", n, elements)
    user = program(daemon)
    user.ask("model", "m", "ro", 0, 20000)
    sums = user.ask("msum", 0)
    user.ask("munlock", 0)
    user.ask("morder", 0, ahead)
    user.ask("mwindow", 0, behind, FORCE)
    return user, sums


def use(user, at, sums):
    user.ask("mlock", 0, 20000, f"layers.{at}")
    assert user.ask("msum", 0, at)[0] == sums[at]


def leave(user, at):
    user.ask("munlock", 0, f"layers.{at}")


@host_only
def test_only_the_window_stays_on_the_device(shared, program):
    user, sums = windowed(shared, program, 1, 1)
    before = hash_of(shared, "model:m")
    for turn in range(2 * N):
        at = turn % N
        use(user, at, sums)
        assert stay(shared, (at - 1) % N, at, (at + 1) % N)
        leave(user, at)
    user.ask("mwindow", 0, OFF, 0)
    use(user, 3, sums)  # from here on nothing leaves, and the next one still comes
    assert stay(shared, 3, 4, 5, 0)
    assert hash_of(shared, "model:m") == before


@host_only
def test_a_model_that_is_larger_than_the_device_runs_as_a_decode_loop(make_daemon, program):
    """The device's capacity is set by configuration: two layers and a half, of six."""
    daemon = make_daemon(supervise=True, config="device_bytes = 32MiB\noffload_limit = 100\n").start()
    load_layers(daemon, "m", N, LAYER)
    before = hash_of(daemon, "model:m")
    reader = program(daemon)
    reader.ask("model", "m", "ro", 0, 20000)
    sums = [word.split(":")[1] for word in reader.ask("msum", 0)]
    reader.end()
    ctl_done(daemon, "sleep", "m")
    (daemon.home / "hbmd.conf").write_text("device_bytes = 2560KiB\n")
    old = daemon.kill9()
    back(daemon, old)
    user = program(daemon)
    user.ask("model", "m", "ro", UNLOCKED, 20000)
    user.ask("morder", 0, 1)
    with fails("OFFLOAD_LIMIT", "2 of its 6 groups"):
        user.ask("mwindow", 0, 0, 0)
    user.ask("mwindow", 0, 0, FORCE)
    for turn in range(4 * N):
        at = turn % N
        user.ask("mlock", 0, 20000, f"layers.{at}")
        assert user.ask("msum", 0, at)[0].split(":")[1] == sums[at]
        assert used(daemon) <= 2560 * 1024
        leave(user, at)
    assert stay(daemon, N - 1, 0)
    assert hash_of(daemon, "model:m") == before
    assert waits(daemon.rpc("hbm.models")[0])[1] > 0, "some were brought before they were locked"
    user.end()
    sweep(daemon)


@host_only
def test_two_clients_with_windows_of_their_own_share_one_model(shared, program):
    one, sums = windowed(shared, program, 1, 0)
    other, others_sums = windowed(shared, program, 1, 1)
    assert [word.split(":")[1] for word in sums] == [word.split(":")[1] for word in others_sums]
    use(one, 0, sums)
    assert stay(shared, 0, 1)  # the other has used nothing yet
    use(other, 3, others_sums)
    assert stay(shared, 0, 1, 3, 4)  # what is behind is kept, not brought
    leave(one, 0)
    use(one, 1, sums)
    assert stay(shared, 1, 2, 3, 4)
    leave(other, 3)
    use(other, 4, others_sums)  # its 2 is behind it, and in the other's window
    assert stay(shared, 1, 2, 3, 4, 5)
    one.end()
    shared.wait_for(lambda: len(shared.rpc("hbm.sessions")) == 1)
    leave(other, 4)
    use(other, 5, others_sums)
    leave(other, 5)
    use(other, 0, others_sums)
    assert stay(shared, 0, 1, 2, 5)  # what the dead one wanted is nobody's to send away but those who pass it
    leave(other, 0)
    for at in (1, 2, 3, 4):
        use(other, at, others_sums)
        leave(other, at)
    assert stay(shared, 3, 4, 5)


@host_only
def test_a_ring_of_batches_keeps_what_is_written_to_it(shared, program):
    """Batch n is in use, n - 1 leaves, n + 1 arrives: contents of its own that a client writes, round after round."""
    user = program(shared)
    user.ask("publish", "ring", 0, 1000, N, 1024)
    user.ask("mfill", 0, 7)
    user.ask("commit", 0)
    user.ask("model", "ring", "rw", 0, 20000)
    sums = user.ask("msum", 0)
    user.ask("munlock", 0)
    user.ask("morder", 0, 1)
    user.ask("mwindow", 0, 0, FORCE)
    for turn in range(3 * N):
        at = turn % N
        user.ask("mlock", 0, 20000, f"g{at}")
        assert user.ask("msum", 0, at)[0] == sums[at]
        user.ask("munlock", 0, f"g{at}")
    shared.wait_for(lambda: at_rest(shared))
    assert tiers(shared, "ring") == ["device"] + ["host"] * (N - 2) + ["device"]


@host_only
def test_a_layer_that_leaves_stays_where_it_was_when_its_client_is_killed(shared, client_program):
    """FAULTS 1: killed while it is leaving."""
    def start(_):
        user = Program(client_program, shared)
        user.ask("open", 0)
        return user

    user, sums = windowed(shared, start, 1, 0)
    before = hash_of(shared, "model:m")
    with stopped_worker(shared):
        use(user, 0, sums)
        shared.wait_for(lambda: not at_rest(shared))
        user.kill()
        shared.wait_for(lambda: not shared.rpc("hbm.sessions"))
    shared.wait_for(lambda: settled(shared))
    assert tiers(shared) == ["device"] * N
    assert hash_of(shared, "model:m") == before


@host_only
def test_a_loop_goes_on_with_the_next_owner(make_daemon, program):
    """FAULTS 26: killed while layers leave and come."""
    daemon = make_daemon(supervise=True).start()
    user, sums = windowed(daemon, program, 1, 0)
    before = hash_of(daemon, "model:m")
    for turn in range(2 * N):
        at = turn % N
        use(user, at, sums)
        if at % 3 == 1:
            back(daemon, daemon.kill9())
            daemon.wait_for(lambda: [row["state"] for row in daemon.rpc("hbm.sessions")] == ["open"])
        leave(user, at)
    use(user, 0, sums)
    leave(user, 0)
    use(user, 1, sums)
    daemon.wait_for(lambda: at_rest(daemon))
    assert tiers(daemon)[0] == "host" and tiers(daemon)[1:3] == ["device"] * 2
    assert hash_of(daemon, "model:m") == before
    user.end()


def shown(daemon):
    """The declared order, and each window by its pid."""
    [row] = daemon.rpc("hbm.models", {"model": "m"})
    return row["order"], {window["pid"]: window["groups"] for window in row["windows"]}


def groups(*layers):
    return [f"layers.{i}" for i in layers]


@host_only
def test_the_declared_order_and_where_windows_of_it_stand_is_shown(shared, program):
    load_layers(shared, "other", 1)
    user, sums = windowed(shared, program, 1, 1)
    pid = user.process.pid
    assert shown(shared) == (groups(*range(N)), {})  # nothing has been used yet
    use(user, 0, sums)
    assert shown(shared)[1] == {pid: groups(0, 1, N - 1)}
    leave(user, 0)
    use(user, 2, sums)
    assert shown(shared)[1] == {pid: groups(1, 2, 3)}
    text = ctl_done(shared, "models", "m")
    assert f"pid {pid}: layers.1, layers.2, layers.3" in text and f"order                {', '.join(groups(*range(N)))}" in text
    assert "other" not in text and "other" in ctl_done(shared, "models")
    [row] = shared.rpc("hbm.show", {"sel": "m/layers.2.weight"})
    assert (row["turn"], row["in_window_of"]) == (3, [pid])
    [row] = shared.rpc("hbm.show", {"sel": "m/layers.5.weight"})
    assert (row["turn"], row["in_window_of"]) == (6, [])
    user.ask("mwindow", 0, OFF, 0)
    assert shown(shared) == (groups(*range(N)), {})
    user.ask("morder", 0, 1, *reversed(groups(*range(N))))
    assert shown(shared)[0] == list(reversed(groups(*range(N))))
    [row] = shared.rpc("hbm.show", {"sel": "other/*"})
    assert (row["turn"], row["in_window_of"]) == (None, [])
    ctl_refused(shared.ctl("models", "nothing"), 1, "nothing")


@host_only
def test_an_owner_without_clients_has_no_order_and_whoever_comes_back_tells_it_again(make_daemon, program):
    """FAULTS 26: it is in no ledger. Until then a model sleeps and wakes in the order in which it was published."""
    daemon = make_daemon(supervise=True).start()
    user, sums = windowed(daemon, program, 1, 1)
    before, pid = hash_of(daemon, "model:m"), user.process.pid
    use(user, 2, sums)
    back(daemon, daemon.kill9())
    daemon.wait_for(lambda: [row["state"] for row in daemon.rpc("hbm.sessions")] == ["open"])
    assert shown(daemon) == (None, {pid: groups(1, 2, 3)})  # windows are in the client's words
    leave(user, 2)
    use(user, 3, sums)
    daemon.wait_for(lambda: shown(daemon) == (groups(*range(N)), {pid: groups(2, 3, 4)}))
    leave(user, 3)
    user.end()
    daemon.wait_for(lambda: not daemon.rpc("hbm.sessions"))
    back(daemon, daemon.kill9())
    assert shown(daemon) == (None, {})
    ctl_done(daemon, "sleep", "m")
    ctl_done(daemon, "wake", "m")
    assert tiers(daemon) == ["device"] * N and hash_of(daemon, "model:m") == before
    user, sums = windowed(daemon, program, 1, 1)
    assert shown(daemon) == (groups(*range(N)), {})
    use(user, 5, sums)
    assert shown(daemon)[1] == {user.process.pid: groups(0, 4, 5)} and stay(daemon, 4, 5, 0)
    user.end()
    sweep(daemon)


@host_only
def test_a_loop_goes_on_after_a_worker_that_died_with_a_layer_in_its_hands(make_daemon, program):
    """FAULTS 24"""
    faulty = Faulty("copy:kill:3", make_daemon)
    user, sums = windowed(faulty.daemon, program, 1, 0)
    before = hash_of(faulty.daemon, "model:m")
    struck = 0
    for turn in range(3 * N):
        at = turn % N
        try:
            use(user, at, sums)
        except Exception as error:  # the lock's own copy was in its hands
            assert "WORKER_DIED" in repr(error)
            struck += 1
            faulty.daemon.wait_for(faulty.ready)
            use(user, at, sums)
        leave(user, at)
        faulty.daemon.wait_for(lambda: at_rest(faulty.daemon))
    assert struck <= 1 and faulty.restarts() == 1
    faulty.daemon.wait_for(lambda: at_rest(faulty.daemon))
    assert tiers(faulty.daemon)[5] == "device" and "host" in tiers(faulty.daemon)
    assert hash_of(faulty.daemon, "model:m") == before
    user.end()


@host_only
def test_a_window_wants_an_order_and_keeps_the_offload_limit(shared, program):
    load_layers(shared, "m", N)
    user = program(shared)
    user.ask("model", "m", "ro", 0, 20000)
    user.ask("munlock", 0)
    with fails("INVALID", "no order"):
        user.ask("mwindow", 0, 0, FORCE)
    user.ask("morder", 0, 2)
    with fails("OFFLOAD_LIMIT", "3 of its 6 groups", "50.0 %", "30 %"):
        user.ask("mwindow", 0, 0, 0)
    user.ask("mlock", 0, 20000, "layers.0")
    shared.wait_for(lambda: at_rest(shared))
    assert tiers(shared) == ["device"] * N


def test_a_flood_of_what_leaves_is_one_operation_and_others_are_served(shared, client):
    """FAULTS 9: of slots that are there, of slots that map nothing, of orders that make no sense, and of more than a message has."""
    load_layers(shared, "m", 4)
    before = hash_of(shared, "model:m")
    client.call("attach_model", name="m", access=0, flags=UNLOCKED, timeout_ms=5000).close()
    with stopped_worker(shared):
        for i in range(2000):
            client.send("behind", serial=0, n=129 if i % 3 == 0 else 128, slots=list(range(i % 7, 128 + i % 7)))
            client.send("order", serial=0, lease=i, at=i % 5, n=128, slots=list(range(128)))
        client.call("device")
        assert len([op for op in shared.rpc("hbm.ops") if op["state"] == "running"]) == 1
    shared.wait_for(lambda: at_rest(shared))
    assert tiers(shared) == ["host"] * 4 and hash_of(shared, "model:m") == before
