"""Operations: what moves, what is encoded, what is read whole."""
from helpers import hash_of, row_of, safetensors
from flows.common import bring_back, expect, flow


@flow("owner", "worker", "client")
def operations(world, struck):
    """A client's own."""
    user = world.program()
    user.ask("open", 0)
    with struck():
        user.ask("op", "offload", "in-device", 1)
        user.ask("op", "restore", "in-device")
        user.ask("op", "prefetch", "in-device")
        user.ask("op", "copy", "model/layers.0.weight")
        user.ask("op", "cancel", "in-device", 2)
    bring_back(world, "in-device")


@flow("owner", "worker")
def compress_replace_and_decompress(world, struck):
    user = world.program()
    user.ask("open", 0)
    index, _ = user.ask("publish", "scratch", 0, 5000, 2, 1000)
    world.seen(user, "mfill", index, 5)
    user.ask("commit", index)
    user.ask("close")
    with struck():
        world.daemon.rpc("hbm.compress", {"sel": "model:scratch", "codec": "int8-split"})
        world.daemon.rpc("hbm.decompress", {"sel": "model:scratch"})


@flow("owner", "worker")
def advise_codec(world, struck):
    with struck() as it:
        it.rows = world.daemon.rpc("hbm.advise_codec", {"sel": "model/layers.0.weight", "codec": "int8"})
    if it.done:
        expect({each["granularity"] for each in it.rows[0]["tries"]} >= {"tensor", "group:128"}, "not every granularity was tried")


@flow("owner", "worker")
def compress_copy(world, struck):
    with struck() as it:
        world.daemon.rpc("hbm.compress", {"sel": "model/layers.0.weight", "codec": "int8", "calibrate": "percentile:99",
                                           "mode": "copy", "as": "copy"})
    if it.done:
        expect(row_of(world.daemon, "copy")["encoding"] != "raw", "the copy is not encoded")


@flow("owner", "worker")
def observe(world, struck):
    """A batch, and a copy that is encoded by it."""
    name = "model/layers.0.weight"
    with struck() as it:
        world.daemon.rpc("hbm.observe", {"sel": name})
        world.daemon.rpc("hbm.compress", {"sel": name, "codec": "int8", "calibrate": "observed:mse", "mode": "copy", "as": "copy"})
    if it.done:
        expect(row_of(world.daemon, "copy")["receipt"]["method"] == "observed:mse", "the copy is not encoded by what was observed")
    world.daemon.rpc("hbm.observe", {"sel": name, "forget": True})


@flow("owner", "worker")
def offload_to_host(world, struck):
    with struck():
        world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "host"})
        world.daemon.rpc("hbm.restore", {"sel": "in-device"})
    bring_back(world, "in-device")


@flow("owner", "worker")
def offload_to_disk(world, struck):
    with struck():
        world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "disk"})
        world.daemon.rpc("hbm.restore", {"sel": "in-device"})
    bring_back(world, "in-device")


@flow("owner", "worker", "client")
def make_room(world, struck):
    """For an allocation: what lies there idle goes for it."""
    user = world.program()
    user.ask("open", 0)
    free = next(row["free"] for row in world.rpc("hbm.devices")[0]["tiers"] if row["tier"] == "device")
    user.alloc("-", free)
    with struck() as it:
        user.alloc("-", 4096)
    if it.done:
        expect(world.rpc("hbm.status")["evictions"], "nothing went for it")
    world.part()
    for name in [row["name"] for row in world.daemon.rpc("hbm.ls") if row["tier"] != "device" and row["name"] in world.on_device]:
        bring_back(world, name)


@flow("owner", "worker")
def offload_to_a_peer(world, struck):
    with struck():
        world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "peer"})
        world.daemon.rpc("hbm.restore", {"sel": "in-device"})
    bring_back(world, "in-device")


@flow("owner", "worker")
def cancel(world, struck):
    with struck():
        op = world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "disk", "async": True})["op"]
        world.daemon.rpc("hbm.cancel", {"op": op})
        world.daemon.rpc("hbm.wait", {"op": op})
    bring_back(world, "in-device")


@flow("owner", "worker")
def sleep_and_wake(world, struck):
    with struck():
        world.daemon.rpc("hbm.sleep", {"model": "model", "to": "host"})
        world.daemon.rpc("hbm.wake", {"model": "model"})
    world.at_last(lambda: world.daemon.rpc("hbm.wake", {"model": "model"}))


@flow("owner", "worker")
def park(world, struck):
    """Of zeros, which no codec takes anything from."""
    path = safetensors(world.daemon.home / "zeros.safetensors", {"w": ("F32", (64, 64), bytes(16384))})
    world.ctl("load", path, "--as", "zeros")
    with struck() as it:
        world.daemon.rpc("hbm.compress", {"sel": "zeros/w", "codec": "int8", "mode": "park"})
        world.daemon.rpc("hbm.sleep", {"model": "zeros", "to": "host"})
        it.row = row_of(world.daemon, "zeros/w")
        world.daemon.rpc("hbm.wake", {"model": "zeros"})
    if it.done:
        expect(it.row["parked"] and it.row["receipt"]["sqnr_db"] is None, "not parked, or zeros are none any more")
    world.at_last(lambda: world.daemon.rpc("hbm.wake", {"model": "zeros"}))
    world.at_last(lambda: world.daemon.rpc("hbm.rm", {"model": "zeros"}))


@flow("owner", "worker")
def prefetch(world, struck):
    with struck():
        world.daemon.rpc("hbm.sleep", {"model": "model", "to": "host"})
        world.daemon.rpc("hbm.prefetch", {"sel": "model:model"})
    world.at_last(lambda: world.daemon.rpc("hbm.wake", {"model": "model"}))


@flow("owner", "worker")
def hash_everything(world, struck):
    with struck() as it:
        it.hashes = hash_of(world.daemon, "*")
    if it.done:
        expect(it.hashes == world.hashes, "wrong hashes")
