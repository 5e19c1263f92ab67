"""Parked memory: encoded whenever it leaves the device, decoded on the way back, raw to everyone who attaches
(FAULTS 1, 14, 20, 25, 26, 34; CASES 17, 20, 21)."""
import os
import struct
import subprocess

import pytest

from conftest import RpcError
from helpers import (MIB, Client, client, client_program, ctl_done, ctl_json, ctl_refused, fails, floats, hash_of, host_only, load_layers,
                     module_daemon, program, root_only, row_of, safetensors, settled, shared, tier_of, used)
from test_compress import TENSORS
from wire import FORCE, KEEP, UNLOCKED

FORMS = [("fp16", None), ("bf16", None), ("int8", "tensor"), ("int8", "channel"), ("int8", "group:32"), ("int8", "group:7"),
         ("fp8-e4m3", "channel"), ("fp8-e5m2", "group:7"), ("fp16-scaled", "tensor"), ("int4", "group:32"), ("int4", "group:7"), ("int8-asym", "channel")]


def halves(values):
    """BF16 by cutting."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


OWN = {"fp16": "F16", "fp16-scaled": "F16", "bf16": "BF16"}  # what has that dtype already is refused
PACK = {"F32": floats, "F16": lambda values: struct.pack(f"<{len(values)}e", *values), "BF16": halves}


def mixed(dtype):
    """Of each shape one: matrices whose rows are no multiple of anything, a cube, vectors, what no codec takes, and nothing."""
    small = [max(-60000.0, min(60000.0, value)) if value == value and abs(value) != float("inf") else value for value in TENSORS["odd"]]
    tensors = {name.replace(" ", "_"): (dtype, (len(values),), PACK[dtype](values))
               for name, values in TENSORS.items() if dtype != "F16" or "max" not in name and "huge" not in name}
    tensors |= {
        "layers.0.w": (dtype, (33, 77), PACK[dtype]([(i * 7919 % 2003) / 91 - 11 for i in range(33 * 77)])),
        "layers.0.ids": ("I64", (3,), bytes(range(24))),
        "layers.0.b": (dtype, (len(small),), PACK[dtype](small)),
        "layers.1.w": (dtype, (3, 5, 64), PACK[dtype]([i / 17 for i in range(960)])),
        "layers.1.empty": (dtype, (0, 4), b""),
        "layers.1.mask": ("BOOL", (7,), bytes([1, 0, 1, 0, 1, 1, 0])),
    }
    return tensors


def load_twice(daemon, tensors):
    path = safetensors(daemon.home / "x.safetensors", tensors)
    ctl_done(daemon, "load", path, "--as", "m")
    ctl_done(daemon, "load", path, "--as", "ref")


def hashes(daemon, model):
    return {name.split("/", 1)[1]: value for name, value in hash_of(daemon, f"model:{model}").items()}


def how(codec, granularity=None):
    return ["--codec", codec, *(["--granularity", granularity] if granularity else [])]


def through(daemon, codec, granularity, model="ref"):
    """The model as decode(encode(it)), by the codecs in place."""
    ctl_done(daemon, "compress", f"model:{model}", *how(codec, granularity))
    ctl_done(daemon, "decompress", f"model:{model}")
    return hashes(daemon, model)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("codec, granularity, dtype", [(codec, granularity, dtype) for codec, granularity in FORMS
                                                       for dtype in ("F32", "F16", "BF16") if OWN.get(codec) != dtype])
def test_a_parked_model_wakes_as_what_its_codec_makes_of_it(shared, codec, granularity, dtype, tier):
    """FAULTS 25, CASES 21: every value, every odd size; what no codec takes goes along untouched."""
    load_twice(shared, mixed(dtype))
    before = hashes(shared, "m")
    ctl_done(shared, "compress", "model:m", *how(codec, granularity), "--mode", "park")
    assert hashes(shared, "m") == before and all(row["tier"] == "device" for row in shared.rpc("hbm.ls"))
    ctl_done(shared, "sleep", "m", "--to", tier)
    expected = through(shared, codec, granularity)
    rows = {row["name"]: row for row in shared.rpc("hbm.ls", {"glob": "m/*"})}
    assert {row["tier"] for row in rows.values()} == {tier} and {row["encoding"] for row in rows.values()} == {"raw"}
    assert rows["m/layers.0.ids"]["parked"] is None
    if rows["m/layers.0.w"]["parked"]:  # else it has that dtype already
        assert rows["m/layers.0.w"]["parked"].startswith(codec) and rows["m/layers.0.w"]["receipt"]["bytes_before"] == rows["m/layers.0.w"]["size"]
        assert rows["m/layers.0.w"]["stored_size"] == rows["m/layers.0.w"]["receipt"]["bytes_after"]
    assert hashes(shared, "m") == expected, "hash says what an attach would see"
    ctl_done(shared, "wake", "m")
    assert hashes(shared, "m") == expected
    assert {row["tier"] for row in shared.rpc("hbm.ls")} == {"device"} and used(shared, tier) == 0


@pytest.mark.parametrize("codec, granularity", FORMS)
def test_a_large_model_goes_in_pieces_and_takes_what_its_form_takes(shared, codec, granularity):
    """More than one batch of a worker's, cut inside of rows and groups; the books count encoded bytes."""
    rows, columns = 1031, 9001
    data = bytes(floats([(i * 48271 % 65521) / 997 - 30 for i in range(columns)]))
    load_twice(shared, {"w": ("F32", (rows, columns), b"".join(data[4 * (i % 97):] + data[:4 * (i % 97)] for i in range(rows)))})
    ctl_done(shared, "sleep", "m", *how(codec, granularity))
    stored = row_of(shared, "m/w")["stored_size"]
    assert stored <= used(shared, "host") <= stored + 2 * MIB < rows * columns * (4 if granularity == "group:7" else 3)
    expected = through(shared, codec, granularity)
    ctl_done(shared, "wake", "m")
    assert hashes(shared, "m") == expected and row_of(shared, "m/w")["parks_as"] is None


@pytest.mark.parametrize("codec, granularity, dtype", [(codec, granularity, dtype) for codec, granularity in FORMS
                                                       for dtype in ("F32", "BF16") if OWN.get(codec) != dtype])
def test_parking_again_what_came_back_takes_no_more_away(shared, codec, granularity, dtype):
    """CASES 17: fp16, bf16, and other codecs of 16-bit floats are the same from the first time on. A binary32 scale may come out one
    unit in the last place off the second time, and is the same from then on; what has zero points comes to rest a time later."""
    load_twice(shared, mixed(dtype))
    seen = []
    for _ in range(5):
        ctl_done(shared, "sleep", "m", *how(codec, granularity))
        ctl_done(shared, "wake", "m")
        seen.append(hashes(shared, "m"))
    rest = 2 if codec == "int8-asym" else 0 if granularity is None or dtype == "BF16" else 1
    assert all(later == seen[rest] for later in seen[rest:])


def test_what_is_parked_says_so_everywhere_and_decompress_ends_it(shared):
    load_layers(shared, n=2)
    said = ctl_done(shared, "compress", "m/*", "--codec", "int8", "--granularity", "tensor", "--mode", "park")
    assert said.count("raw on the device, int8 per tensor whenever it is off it") == 2
    assert "parks as int8 per tensor" in ctl_done(shared, "ls")
    said = ctl_done(shared, "offload", "m/layers.0.weight", "--to", "host", "--force")
    assert "16.0 KiB as 4.0 KiB to host" in said
    [model] = shared.rpc("hbm.models")
    assert model["bytes"] == 32768 and model["bytes_by_tier"] == {"device": 16384, "host": 16384, "disk": 0, "peer": 0}
    assert model["stored_by_tier"] == {"device": 16384, "host": row_of(shared, "m/layers.0.weight")["stored_size"], "disk": 0, "peer": 0}
    assert ctl_done(shared, "models").split("\n")[1].split()[4:10] == ["32.0", "KiB", "16.0", "KiB", "4.0", "KiB"]
    assert "parked as int8 per tensor" in ctl_done(shared, "ls")
    shown = ctl_done(shared, "show", "m/layers.0.weight")
    for line in ("encoding             raw", "parks_as             int8 per tensor", "parked               int8 per tensor", "sqnr_db"):
        assert line in shown
    ctl_done(shared, "decompress", "m/*")
    row = row_of(shared, "m/layers.0.weight")
    assert (row["parks_as"], row["parked"]) == (None, "int8 per tensor")
    ctl_done(shared, "restore", "m/*")
    ctl_done(shared, "offload", "m/*", "--to", "host", "--force")
    assert row_of(shared, "m/layers.0.weight")["parked"] is None
    ctl_refused(shared.ctl("decompress", "m/layers.0.weight"), 1, "not compressed")


REFUSED = [["--codec", "int8", "--min-sqnr", "120"], ["--codec", "int8", "--max-error", "1e-6"]]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: options[2])
def test_a_sleep_that_would_cost_more_than_its_bound_leaves_the_model_as_it_was(shared, options):
    load_layers(shared, n=3)
    before, rows, held = hash_of(shared, "m/*"), {row["name"]: row for row in shared.rpc("hbm.ls")}, used(shared)
    for tier in ("host", "disk"):
        ctl_refused(shared.ctl("sleep", "m", "--to", tier, *options), 1, "m/layers.", "worse")
    assert hash_of(shared, "m/*") == before and {row["name"]: row for row in shared.rpc("hbm.ls")} == rows and used(shared) == held
    assert used(shared, "host") == used(shared, "disk") == 0
    ctl_done(shared, "sleep", "m", "--codec", "int8", "--min-sqnr", "20", "--max-error", "10")
    assert tier_of(shared, "m/layers.0.weight") == "host"


@pytest.mark.parametrize("options", [["--codec", "gzip"], ["--codec", "fp16", "--granularity", "channel"], ["--min-sqnr", "3"],
                                     ["--granularity", "tensor"], ["--codec", "int8", "--max-error", "-1"]], ids=" ".join)
def test_a_sleep_by_no_codec_that_there_is_is_refused(shared, options):
    load_layers(shared, n=1)
    result = shared.ctl("sleep", "m", *options)
    ctl_refused(result, result.returncode)
    assert result.returncode in (1, 2) and tier_of(shared, "m/layers.0.weight") == "device"
    with pytest.raises(RpcError):
        shared.rpc("hbm.sleep", {"model": "m"} | {name[2:].replace("-", "_"): float(value) if value.lstrip("-").isdigit() else value
                                                  for name, value in zip(options[::2], options[1::2])})


@host_only
def test_a_client_finds_its_memory_decoded_under_the_same_address(shared, program):
    holder = program(shared)
    lease, _, address = holder.alloc("w", MIB, KEEP)
    with fails("UNSUPPORTED"):  # bytes: no codec takes them
        shared.rpc("hbm.compress", {"sel": "w", "codec": "bf16", "mode": "park"})
    holder.ask("detach", lease)
    ctl_done(shared, "free", "w")
    load_layers(shared, n=2)
    lease, _, address = holder.attach("m/layers.1.weight")
    before = holder.ask("sum", lease)
    holder.ask("unlock", lease)
    ctl_done(shared, "sleep", "m", "--codec", "bf16")
    assert used(shared) == 0
    holder.ask("lock", lease, 5000)
    assert holder.ask("pointer", lease) == [address]
    once = holder.ask("sum", lease)
    holder.ask("unlock", lease)
    ctl_done(shared, "sleep", "m", "--codec", "bf16")
    ctl_done(shared, "prefetch", "m/layers.1.weight")
    assert tier_of(shared, "m/layers.1.weight") == "device"
    holder.ask("lock", lease, 5000)
    assert holder.ask("sum", lease) == once != before
    holder.ask("detach", lease)


def test_reserving_addresses_of_what_is_parked_away_takes_its_raw_size(shared, client):
    load_layers(shared, n=1, elements=3 * MIB)
    grant, _ = client.attach("m/layers.0.weight")
    size = grant["arena_size"]
    client.call("detach", lease=grant["lease"])
    ctl_done(shared, "sleep", "m", "--codec", "int8")
    with Client(shared.socket) as link:
        link.hello()
        grant, _ = link.attach("m/layers.0.weight", flags=UNLOCKED)
        assert (grant["present"], grant["arena_size"], grant["size"]) == (0, size, 12 * MIB)


def test_a_saved_model_is_raw_while_it_is_parked(shared):
    path = load_layers(shared, n=2)
    ctl_done(shared, "sleep", "m", "--to", "disk", "--codec", "int8")
    ctl_done(shared, "save", "m", shared.home / "asleep.safetensors")
    assert tier_of(shared, "m/layers.0.weight") == "disk"
    ctl_done(shared, "wake", "m")
    ctl_done(shared, "save", "m", shared.home / "awake.safetensors")
    asleep, awake = ((shared.home / f"{name}.safetensors").read_bytes() for name in ("asleep", "awake"))
    assert asleep == awake != path.read_bytes()


def test_host_and_disk_exchange_what_is_parked_as_it_lies(shared):
    load_layers(shared, n=2, elements=MIB)
    ctl_done(shared, "sleep", "m", "--codec", "int8")
    before, held = hash_of(shared, "m/*"), used(shared, "host")
    ctl_done(shared, "sleep", "m", "--to", "disk")
    assert (used(shared, "host"), used(shared, "disk")) == (0, held) and hash_of(shared, "m/*") == before
    ctl_done(shared, "offload", "m/*", "--to", "host")
    assert row_of(shared, "m/layers.1.weight")["parked"] and used(shared, "disk") == 0
    ctl_done(shared, "wake", "m")
    assert hash_of(shared, "m/*") == before


# ---- Faults ----

def is_back(daemon, gone):
    try:
        return gone != daemon.pid and daemon.rpc("hbm.devices")[0]["state"] == "ready"
    except (OSError, ConnectionError):
        return False


def kill_owner(daemon):
    gone = daemon.kill9()
    daemon.wait_for(lambda: is_back(daemon, gone), 30)


def test_a_restart_finds_what_is_parked_and_how(make_daemon):
    """FAULTS 26."""
    daemon = make_daemon(supervise=True).start()
    load_layers(daemon, n=3, elements=100003)
    ctl_done(daemon, "compress", "m/layers.0.weight", "--codec", "int8", "--mode", "park", "--min-sqnr", "20")
    ctl_done(daemon, "offload", "m/layers.0.weight", "--to", "disk", "--force")
    ctl_done(daemon, "compress", "m/layers.2.weight", "--codec", "bf16", "--mode", "park")
    before, rows, held = hash_of(daemon, "m/*"), daemon.rpc("hbm.ls"), used(daemon, "disk")
    for _ in range(2):
        kill_owner(daemon)
        assert daemon.rpc("hbm.ls") == rows and hash_of(daemon, "m/*") == before and used(daemon, "disk") == held
    ctl_done(daemon, "restore", "m/*")
    assert hash_of(daemon, "m/*") == before
    ctl_done(daemon, "sleep", "m")
    assert [row["parked"] for row in daemon.rpc("hbm.ls")] == ["int8 per tensor", None, "bf16"]


def test_an_owner_killed_while_a_model_is_parked_finds_it_awake_or_asleep(make_daemon):
    """FAULTS 26: at whatever step, and no wrong byte."""
    daemon = make_daemon(supervise=True).start()
    load_layers(daemon, n=6, elements=MIB // 2)
    ctl_done(daemon, "sleep", "m", "--codec", "bf16")  # from here on bf16 takes nothing away
    ctl_done(daemon, "wake", "m")
    before = hash_of(daemon, "m/*")
    for turn in range(6):
        verb = ["sleep", "m", "--codec", "bf16", "--async"] if turn % 2 == 0 else ["wake", "m", "--async"]
        ctl_done(daemon, *(["wake", "m"] if turn % 2 == 0 else ["sleep", "m", "--codec", "bf16"]))
        ctl_done(daemon, *verb)
        for _ in range(turn // 2):
            daemon.rpc("hbm.ops")
        kill_owner(daemon)
        rows = daemon.rpc("hbm.ls")
        lie = {(row["tier"], row["parked"]) for row in rows}
        assert lie <= {("device", None), ("host", "bf16")} and (len(lie) == 1 or turn % 2), "asleep at once, awake group by group"
        assert hash_of(daemon, "m/*") == before
    ctl_done(daemon, "wake", "m")
    assert hash_of(daemon, "m/*") == before and used(daemon, "host") == 0


@host_only
def test_a_client_killed_or_cancelled_in_the_middle_of_its_parking_leaves_all_or_nothing(shared, program):
    """FAULTS 1, 14; the books are looked at by the fixture."""
    load_layers(shared, n=4, elements=MIB // 2)
    ctl_done(shared, "compress", "m/*", "--codec", "bf16", "--mode", "park")
    ctl_done(shared, "sleep", "m")
    ctl_done(shared, "wake", "m")
    before = hash_of(shared, "m/*")
    for turn in range(6):
        asker = program(shared)
        asker.say("op", "cancel", "m/*", 1 + turn % 2, FORCE)
        if turn < 3:
            asker.kill()
        else:
            asker.hear()
            asker.end()
        shared.wait_for(lambda: settled(shared), 20)
        rows = shared.rpc("hbm.ls")
        assert len({(row["tier"], row["parked"]) for row in rows}) == 1
        assert hash_of(shared, "m/*") == before
        ctl_done(shared, "wake", "m")
        assert hash_of(shared, "m/*") == before and used(shared, "host") == used(shared, "disk") == 0


@root_only
def test_a_disk_that_fills_half_way_leaves_the_model_awake(make_daemon):
    """FAULTS 20, CASES 20."""
    daemon = make_daemon(config="disk_bytes = 1GiB\n")
    daemon.state_dir.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "none", str(daemon.state_dir)], check=True)
    try:
        daemon.start()
        load_layers(daemon, n=3, elements=MIB // 2)
        before = hash_of(daemon, "m/*")
        ctl_refused(daemon.ctl("sleep", "m", "--to", "disk", "--codec", "fp16"), 1, "room")
        assert hash_of(daemon, "m/*") == before and tier_of(daemon, "m/layers.0.weight") == "device" and used(daemon, "disk") == 0
        ctl_done(daemon, "sleep", "m", "--to", "disk", "--codec", "int8")  # a quarter of it fits
        ctl_done(daemon, "wake", "m")
        daemon.stop()
    finally:
        subprocess.run(["umount", "-l", str(daemon.state_dir)], check=True)


def test_a_hundred_sleeps_leave_nothing_behind(shared):
    """CASES 17, FAULTS 34: fds and books are looked at by the fixture."""
    load_layers(shared, n=2)
    ctl_done(shared, "compress", "m/*", "--codec", "fp16", "--mode", "park")
    fds = None
    for turn in range(50):
        shared.rpc("hbm.sleep", {"model": "m", "to": "host" if turn % 2 else "disk"})
        shared.rpc("hbm.wake", {"model": "m"})
        if turn == 5:
            fds = len(os.listdir(f"/proc/{shared.pid}/fd"))
    shared.wait_for(lambda: len(os.listdir(f"/proc/{shared.pid}/fd")) <= fds + 1)


def test_rows_of_compress_say_what_is_parked(shared):
    load_layers(shared, n=1)
    [row] = ctl_json(shared, "compress", "m/*", "--codec", "int8", "--mode", "park")
    assert (row["encoding"], row["parks_as"], row["tier"]) == ("raw", "int8 per tensor", "device") and "sqnr_db" not in row
