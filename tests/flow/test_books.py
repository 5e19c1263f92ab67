"""The books: what keeps a buffer, who holds what, and what the driver says of it (FAULTS 2, 3; CASES 27)."""
import os
import re

from helpers import (MIB, Client, child, client, client_program, ctl_done, host_only, load_layers, module_daemon, program, put, shared, used)
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
    victim.kill()
    shared.wait_for(lambda: "lease" not in reasons(shared, "w"))
    assert shared.rpc("hbm.status")["quarantined_bytes"] == 0


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
