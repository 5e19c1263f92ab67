"""The books: what keeps a buffer, who holds what, and what the driver says of it (FAULTS 2; CASES 27)."""
import os
import re

from helpers import (MIB, OTHER, Client, as_user, child, client, ctl_done, ctl_json, ctl_refused, gpu_only, hash_of, host_only, let_others_in,
                     load_layers, module_daemon, put, refused, root_only, shared, used)
from tables import publish
from wire import KEEP, RO, RW


def reasons(daemon, sel):
    """The keepers of the only buffer of that selector, by what they are."""
    rows = daemon.rpc("hbm.why_not_free", {"sel": sel})
    assert len(rows) == 1 and all(row["detail"] and row["remedy"] for row in rows[0]["kept_by"]), rows
    found = {}
    for row in rows[0]["kept_by"]:
        found.setdefault(row["what"], []).append(row)
    return found


def do(daemon, remedy):
    """What the remedy says to type, typed."""
    words = re.search(r"hbmctl (.*)$", remedy).group(1).split()
    return ctl_done(daemon, *words)


# ---- What keeps a buffer ----

def test_each_lease_is_named_with_its_client_and_the_command_that_ends_it(shared, child):
    put(shared, "w", b"w" * MIB)

    def hold(say):
        link = Client(shared.socket)
        link.hello("engine")
        grant, _ = link.attach("w", access=RW)
        say()
        return link, grant

    kept = []
    holder = child(lambda say: kept.append(hold(say)))
    holder.heard()
    found = reasons(shared, "w")
    [lease] = found["lease"]
    assert (lease["pid"], lease["client"], lease["access"], lease["locked"]) == (holder.pid, "engine", "rw", True)
    assert f"pid {holder.pid} (engine) leases it rw, locked" in lease["detail"]
    assert shared.rpc("hbm.show", {"sel": "w"})[0]["kept_by"][0]["session"] == lease["session"]
    assert [row["detail"] for row in found["keep"]] == ["it was allocated to be kept without leases"]
    do(shared, lease["remedy"])
    holder.kill()
    shared.wait_for(lambda: "lease" not in reasons(shared, "w"))
    do(shared, reasons(shared, "w")["keep"][0]["remedy"])
    assert shared.rpc("hbm.ls") == [] and used(shared) == 0


def test_a_quarantined_holder_is_named_with_what_is_awaited(shared, child):
    """FAULTS 2: by age, and counted with its bytes."""
    def hang_up(say):
        link = Client(shared.socket)
        link.hello("engine")
        link.alloc(2 * MIB, "w", flags=KEEP)
        link.socket.close()
        say()

    victim = child(hang_up)
    victim.heard()
    shared.wait_for(lambda: shared.rpc("hbm.status")["quarantined"])
    status = shared.rpc("hbm.status")
    assert (status["quarantined"], status["quarantined_bytes"]) == (1, 2 * MIB)
    [session] = [row for row in shared.rpc("hbm.sessions") if row["pid"] == victim.pid]
    assert session["awaiting"] == "its process to end" and session["awaiting_seconds"] >= 0 and session["remedy"]
    [lease] = reasons(shared, "w")["lease"]
    assert f"pid {victim.pid} (engine) is gone and awaited is its process to end, for" in lease["detail"]
    assert "end that process" in lease["remedy"]
    assert f"pid {victim.pid} (engine) is gone" in ctl_done(shared, "why-not-free", "w")
    put(shared, "other", bytes(4096))
    assert [row["name"] for row in ctl_json(shared, "why-not-free")] == ["w"]
    victim.kill()
    shared.wait_for(lambda: "lease" not in reasons(shared, "w"))
    assert shared.rpc("hbm.status")["quarantined_bytes"] == 0 and ctl_json(shared, "why-not-free") == []


def test_a_model_and_its_builder_are_named(shared, client):
    load_layers(shared, "m", 2)
    found = reasons(shared, "m/layers.0.weight")
    assert "belongs to model m" in found["model"][0]["detail"] and found["model"][0]["remedy"] == "hbmctl rm m"
    publish(client, "half", {"t": MIB})
    [row] = [row for row in shared.rpc("hbm.ls") if row["state"] == "building"]
    found = reasons(shared, "id:" + row["id"])
    assert f"which pid {os.getpid()} is building" in found["model"][0]["detail"]
    assert "leases model half" in found["lease"][0]["detail"]
    do(shared, reasons(shared, "m/layers.0.weight")["model"][0]["remedy"])
    assert {row["model"] for row in shared.rpc("hbm.ls")} == {"half"}


def test_a_running_operation_is_named_and_can_be_cancelled_as_it_says(shared, client):
    grant, _ = client.alloc(MIB, "w")
    op = ctl_done(shared, "offload", "w", "--to", "disk", "--async").strip()
    [row] = reasons(shared, "w")["operation"]
    assert row["op"] == op and "(offload) has it" in row["detail"]
    do(shared, row["remedy"])
    assert "operation" not in reasons(shared, "w")
    client.call("detach", lease=grant["lease"])


def test_a_reader_that_keeps_old_contents_after_a_replacement_is_named_with_their_bytes(shared, client):
    grant, _ = client.alloc(4 * MIB, "w", dtype=11, rank=1, dims=[MIB], flags=KEEP)
    client.call("detach", lease=grant["lease"])
    with Client(shared.socket) as reader:
        reader.hello("reader")
        old, _ = reader.attach("w", access=RO)
        ctl_done(shared, "compress", "w", "--codec", "fp16")
        assert used(shared) == 6 * MIB
        [row] = reasons(shared, "w")["old-contents"]
        assert row["bytes"] == 4 * MIB and row["client"] == "reader"
        reader.call("detach", lease=old["lease"])
        assert "old-contents" not in reasons(shared, "w") and used(shared) == 2 * MIB
    ctl_done(shared, "free", "w")


def test_show_prints_what_keeps_a_buffer(shared):
    put(shared, "w", b"w")
    text = ctl_done(shared, "show", "w")
    assert "kept_by\n  it was allocated to be kept without leases; hbmctl free id:0x" in text


# ---- Who holds what ----

def who(daemon, *device):
    rows = daemon.rpc("hbm.who", list(device))
    assert len(rows) == 1, rows
    return rows[0]


def test_who_names_each_holder_by_tier_and_what_is_nobodys(shared, child, client):
    put(shared, "idle", b"i" * (4 * MIB))
    ctl_done(shared, "offload", "idle", "--to", "disk")

    def hold(say):
        link = Client(shared.socket)
        link.hello("engine")
        held = link.alloc(4 * MIB, "w"), link.alloc(2 * MIB, "x")
        link.unlock(held[1][0]["slot"])
        say()
        return link, held

    kept = []
    holder = child(lambda say: kept.append(hold(say)))
    holder.heard()
    row = who(shared)
    [session] = row["sessions"]
    assert (session["pid"], session["client"], session["state"], session["leases"]) == (holder.pid, "engine", "open", 2)
    assert (session["device"], session["host"], session["disk"], session["locked"]) == (6 * MIB, 0, 0, 4 * MIB)
    [account] = row["accounts"]
    assert (account["uid"], account["device"], account["disk"]) == (os.getuid(), 6 * MIB, 4 * MIB)
    assert account["unmapped"] == {"device": 0, "host": 0, "disk": 4 * MIB}
    assert row["ledger"] == used(shared) == 6 * MIB
    text = ctl_done(shared, "who")
    assert "6.0 MiB in the ledger" in text and f"{holder.pid}  engine" in text and "mapped by nobody" in text
    ctl_done(shared, "free", "idle")


@host_only
def test_of_the_machines_memory_the_driver_knows_no_holders_and_that_is_said(shared):
    row = who(shared, "0")
    assert row["unaccounted"] is None and row["processes"] is None
    assert 0 < row["driver"]["used"] < row["driver"]["total"] and row["driver"]["seconds"] < 5
    text = ctl_done(shared, "who")
    assert "the machine counts" in text and "what else is in use is not known" in text
    assert all(device["unaccounted"] is None for device in shared.rpc("hbm.status")["devices"])


@gpu_only
def test_what_the_driver_counts_is_what_the_ledger_has_and_the_rest_is_named(shared, child):
    """The test's own process uses no GPU, so what is unaccounted is small or somebody else's, by pid."""
    put(shared, "w", b"w" * (256 * MIB))
    hash_of(shared, "w")
    row = who(shared, "0")
    assert row["driver"]["used"] >= row["ledger"] >= 256 * MIB
    # Others come and go on this device meanwhile.
    shared.wait_for(lambda: who(shared, "0")["unaccounted"] == shared.rpc("hbm.devices")[0]["unaccounted"])
    assert {one["is"] for one in row["processes"]} <= {"worker", "client", "other"}
    workers = [one for one in row["processes"] if one["is"] == "worker"]
    assert all(one["name"].startswith("hbm-worker") for one in workers)
    ctl_done(shared, "free", "w")


def test_a_client_that_died_holding_most_of_the_device_is_in_the_books_until_it_is_freed(make_daemon, child):
    """CASES 27: named with what is awaited, freed without a restart."""
    daemon = make_daemon(config="device_bytes = 64MiB\n").start()

    def hang_up(say):
        link = Client(daemon.socket)
        link.hello("engine")
        link.alloc(60 * MIB, "most")
        link.socket.close()
        say()

    victim = child(hang_up)
    victim.heard()
    daemon.wait_for(lambda: daemon.rpc("hbm.status")["quarantined"])
    [session] = who(daemon)["sessions"]
    assert (session["pid"], session["device"]) == (victim.pid, 60 * MIB)
    assert session["state"] == "quarantined" and session["awaiting"] == "its process to end"
    assert f"{victim.pid}  engine" in ctl_done(daemon, "who")
    with Client(daemon.socket) as other:
        other.hello()
        with refused("NO_MEMORY"):
            other.alloc(32 * MIB)
        pid = daemon.pid
        victim.kill()
        daemon.wait_for(lambda: used(daemon) == 0)
        other.alloc(60 * MIB)
        assert who(daemon)["sessions"][0]["pid"] == os.getpid() and daemon.pid == pid


@root_only
def test_of_others_only_the_sum_is_seen(shared, client):
    client.alloc(2 * MIB, "mine")
    let_others_in(shared)
    with as_user(OTHER):
        operator = shared.operator()
    with operator:
        row = operator.rpc("hbm.who")[0]
    assert row["accounts"] == [] and row["sessions"] == [] and row["others"]["device"] == 2 * MIB


def test_who_asks_for_a_device_that_is_served(shared):
    ctl_refused(shared.ctl("who", "7"), 1, "no such device", "7", "hbmctl devices")
    assert who(shared, shared.rpc("hbm.devices")[0]["uuid"])["index"] == 0


def test_who_answers_while_the_worker_hangs(make_daemon):
    """With what was last heard, its age beside it, or with null."""
    os.environ["HBM_WORKER_FAULT"] = "query:hang:1"
    try:
        daemon = make_daemon().start()
    finally:
        del os.environ["HBM_WORKER_FAULT"]
    put(daemon, "w", b"w" * (2 * MIB))
    row = who(daemon)
    assert row["driver"] is None and row["accounts"][0]["device"] == 2 * MIB
    assert "its worker has not said what is in use" in ctl_done(daemon, "who")
