"""The flows that are struck. Each runs up to `with struck():`, does there what may fail, and checks after it what must hold
when it did not: struck() ends with done true if nothing failed, and swallows a typed error."""
import contextlib
import os
import signal

from world import DATA, PATIENCE, Broken
from conftest import Daemon
from helpers import OTHER, Child, Client, Program, ProgramError, as_user, hash_of, layers, let_others_in, row_of, safetensors, shards, tier_of
from wire import IN_PLACE, KEEP, LOCK_AWAY, REPLACE, UNLOCKED, WAIT, Refused

NO_THREAD = 1  # to hbm_open
FLOWS = {}


def flow(*roles):
    def add(function):
        FLOWS[function.__name__] = (function, roles)
        return function
    return add


def expect(condition, words):
    if not condition:
        raise Broken(words)


@flow("owner", "client")
def open_and_close(world, struck):
    user = world.program()
    with struck():
        user.ask("open", 0)
        user.ask("close")


@flow("owner", "worker", "client")
def alloc(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck() as it:
        lease, _, _ = user.alloc("fresh", 100000)
        it.lease = lease
        world.seen(user, "fill", lease, 7)
    if it.done:
        expect(world.seen(user, "peek", it.lease, 99999) in (["7"], []), "the new buffer is not what was written")


@flow("owner", "worker", "client")
def attach_and_detach(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck() as it:
        lease, _, _ = user.attach("in-device")
        it.sum = world.seen(user, "sum", lease)
        user.ask("detach", lease)
    if it.done:
        world.sums.setdefault("in-device", it.sum)
        expect(it.sum == world.sums["in-device"], "wrong bytes")


@flow("owner", "worker", "client")
def attach_model(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck() as it:
        index, _ = user.ask("model", "model", "ro", 0, 5000)
        it.sum = [word.split(":")[1] for word in world.seen(user, "msum", index)]
        user.ask("mdetach", index)
    if it.done:
        world.sums.setdefault("model", it.sum)
        expect(it.sum == world.sums["model"], "wrong bytes")


@flow("owner", "worker", "client")
def lock_with_a_move(world, struck):
    user = world.program()
    user.ask("open", 0)
    lease, _, _ = user.attach("in-device", "rw")
    user.ask("unlock", lease)
    with struck():
        world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "host"})
        user.ask("lock", lease, 5000)
        world.seen(user, "sum", lease)
        user.ask("unlock", lease)
    bring_back(world, "in-device")


@flow("owner", "worker", "client")
def lock_by_a_stream(world, struck):
    """On a GPU the stream waits, and what did not come is said by the unlock."""
    user = world.program()
    user.ask("open", 0)
    lease, _, _ = user.attach("in-device")
    user.ask("unlock", lease)
    with struck() as it:
        world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "host"})
        user.ask("lockon", lease, 5000)
        it.sum = world.seen(user, "sum", lease)
        user.ask("unlock", lease)
    if it.done:
        world.sums.setdefault("in-device", it.sum)
        expect(it.sum == world.sums["in-device"], "wrong bytes")
    bring_back(world, "in-device")


@flow("owner", "worker")
def memory_before_its_bytes(world, struck):
    def lock_early(say):
        try:
            link = Client(world.daemon.socket)
            link.hello()
            slot = link.attach("in-device", flags=UNLOCKED)[0]["slot"]
            link.set_word(slot, LOCK_AWAY)
            link.call("lock_early", slot=slot, timeout_ms=5000).close()
            link.call("arrived", slot=slot, timeout_ms=5000)
            link.send("released", serial=0, slot=slot)
            say("arrived")
        except (Refused, ConnectionError) as error:
            say(error)

    with struck():
        world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "host"})
        other = Child(lock_early)
        try:
            words = other.heard(PATIENCE)
            if words != "arrived":
                raise ConnectionError(words)
        finally:
            other.kill()
    bring_back(world, "in-device")


@flow("owner", "worker", "client")
def lock_of_what_is_away(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck() as it:
        lease, _, _ = user.attach("in-disk", "ro")
        it.sum = world.seen(user, "sum", lease)
        user.ask("unlock", lease)
        user.ask("lock", lease, 5000)
        user.ask("detach", lease)
    if it.done:
        world.sums.setdefault("in-disk", it.sum)
        expect(it.sum == world.sums["in-disk"], "wrong bytes")
    bring_back(world, "in-disk", "disk")


@flow("owner", "worker", "client")
def lock_of_many(world, struck):
    user = world.program()
    user.ask("open", 0)
    for name in ("in-device", "in-host"):
        user.attach(name, "rw", UNLOCKED)
    with struck():
        user.ask("lockall", 5000)
    bring_back(world, "in-device")
    bring_back(world, "in-host", "host")


@flow("owner", "worker", "client")
def lock_of_a_model(world, struck):
    user = world.program()
    user.ask("open", 0)
    index, _ = user.ask("model", "model", "ro", 0, 5000)
    with struck():
        user.ask("munlock", index)
        world.daemon.rpc("hbm.sleep", {"model": "model"})
        user.ask("mlock", index, 5000)
    world.close_user()
    world.at_last(lambda: world.daemon.rpc("hbm.wake", {"model": "model"}))


@flow("owner", "worker", "client")
def safepoint(world, struck):
    """The daemon wants what is locked."""
    user = world.program()
    user.ask("open", 0)
    user.attach("in-device", "rw")
    with struck():
        op = world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "host", "async": True})["op"]
        while under_way(world, op):
            user.ask("safepoint", 5000)
    bring_back(world, "in-device")


@flow("owner", "worker", "client")
def demotion_and_promotion(world, struck):
    """Under a client that stays attached."""
    user = world.program()
    user.ask("open", 0)
    lease, _, _ = user.attach("in-device", "rw")
    with struck() as it:
        for verb, params in (("offload", {"to": "host", "live": True}), ("restore", {})):
            op = world.daemon.rpc(f"hbm.{verb}", {"sel": "in-device", "async": True, **params})["op"]
            while under_way(world, op):
                user.ask("safepoint", 5000)
        it.sum = world.seen(user, "sum", lease)
    if it.done:
        world.sums.setdefault("in-device", it.sum)
        expect(it.sum == world.sums["in-device"], "wrong bytes")
    bring_back(world, "in-device")


@flow("owner", "worker", "client")
def lease_in_place(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck() as it:
        lease, _, _ = user.attach("in-host", "ro", IN_PLACE)
        it.sum = world.seen(user, "sum", lease)
        it.tier = user.ask("tier", lease)
        user.ask("detach", lease)
    if it.done:
        world.sums.setdefault("in-host", it.sum)
        expect((it.sum, it.tier) == (world.sums["in-host"], ["host"]), "wrong bytes, or elsewhere")
    bring_back(world, "in-host", "host")


@flow("owner", "worker", "client")
def dispatch(world, struck):
    """libhbm without a thread of its own."""
    user = world.program()
    user.ask("open", NO_THREAD)
    lease, _, _ = user.attach("in-device", "rw")
    user.ask("unlock", lease)
    with struck():
        op = world.daemon.rpc("hbm.offload", {"sel": "in-device", "to": "host", "async": True})["op"]
        while under_way(world, op):
            user.ask("dispatch")
    bring_back(world, "in-device")


def under_way(world, op):
    """Still, a moment later."""
    return world.daemon.rpc("hbm.wait", {"op": op, "timeout_seconds": 0.02})["state"] in ("queued", "running")


@flow("client")
def fork(world, struck):
    """What a child does with the session that it inherited."""
    user = world.program()
    user.ask("open", 0)
    lease, _, _ = user.attach("in-device")
    with struck():
        for what in ("use", "detach", "close"):
            expect(user.ask("fork", what)[0] == "exited", "the child was killed")
    user.ask("detach", lease)


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


@flow("owner", "worker", "client")
def publish_and_commit(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck() as it:
        index, must_build = user.ask("publish", "built", 0, 5000, 3, 1000)
        world.seen(user, "mfill", index, 5)
        user.ask("commit", index)
    if it.done:
        expect(must_build == "1", "nobody was asked to build")
        expect(len(world.at_last(lambda: hash_of(world.daemon, "model:built"))) == 3, "the model lacks tensors")


@flow("owner", "worker", "client")
def publish_and_abort(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck():
        index, _ = user.ask("publish", "built", 0, 5000, 2, 1000)
        user.ask("abort", index)


@flow("owner", "worker", "client")
def replace_a_model(world, struck):
    user = world.program()
    user.ask("open", 0)
    publish(world, user, 0)
    reader, _ = user.ask("model", "built", "ro", 0, 5000)
    before = world.seen(user, "msum", reader)
    with struck():
        publish(world, user, REPLACE)
    expect(world.seen(user, "msum", reader) == before, "what a reader has of a model changed as it was replaced")


def publish(world, user, flags):
    index, _ = user.ask("publish", "built", flags, 5000, 2, 1000)
    world.seen(user, "mfill", index, 5 + flags)
    user.ask("commit", index)


@flow("owner", "client")
def wait_for_a_model(world, struck):
    user = world.program()
    user.ask("open", 0)
    builder = Program(world.client_path, world.daemon)
    builder.ask("open", 0)
    index, _ = builder.ask("publish", "built", 0, 5000, 2, 1000)
    with struck():
        user.say("model", "built", "ro", WAIT, 1000)
        try:
            builder.ask("commit", index)
        finally:
            user.hear()
    builder.end()


@flow("owner", "worker", "ctl")
def load(world, struck):
    with struck() as it:
        world.ctl("load", world.file, "--as", "loaded")
    if it.done:
        wanted = {name.replace("model/", "loaded/"): hash_ for name, hash_ in world.hashes.items() if name.startswith("model/")}
        expect(world.at_last(lambda: hash_of(world.daemon, "model:loaded")) == wanted, "the loaded model has other bytes")


@flow("owner", "worker", "ctl")
def save(world, struck):
    target = world.daemon.home / "saved.safetensors"
    with struck() as it:
        world.ctl("save", "model", target)
    if it.done:
        expect(target.stat().st_size == os.stat(world.file).st_size, "the saved file is short")
    left = [path.name for path in world.daemon.home.iterdir() if path.name.startswith(".hbm-")]
    expect(not left, f"{left} is left behind")
    target.unlink(missing_ok=True)


@flow("ctl")
def replace_by_shards_and_save(world, struck):
    source, target = world.daemon.home / "shards", world.daemon.home / "saved"
    for folder in (source, target):
        folder.mkdir(exist_ok=True)
    shards(source, layers(2))
    world.ctl("load", world.file, "--as", "loaded")
    with struck() as it:
        world.ctl("load", source, "--as", "loaded", "--replace")
        world.ctl("save", "loaded", target)
    for path in source.iterdir():
        if it.done:
            expect((target / path.name).read_bytes() == path.read_bytes(), "a shard was saved with other bytes")
        (target / path.name).unlink(missing_ok=True)
    left = [path.name for path in target.iterdir()]
    expect(not left, f"{left} is left behind")


@flow("owner", "worker", "ctl")
def put_and_get(world, struck):
    source, target = world.daemon.home / "source", world.daemon.home / "target"
    source.write_bytes(DATA)
    with struck() as it:
        world.ctl("put", "fresh", source)
        world.ctl("get", "fresh", target)
    if it.done:
        expect(target.read_bytes() == DATA, "what was got is not what was put")
    left = [path.name for path in world.daemon.home.iterdir() if path.name.startswith(".hbm-")]
    expect(not left, f"{left} is left behind")
    target.unlink(missing_ok=True)


@flow("owner", "worker")
def compress_replace_and_decompress(world, struck):
    user = world.program()
    user.ask("open", 0)
    index, _ = user.ask("publish", "scratch", 0, 5000, 2, 1000)
    world.seen(user, "mfill", index, 5)
    user.ask("commit", index)
    user.ask("close")
    with struck():
        world.daemon.rpc("hbm.compress", {"sel": "model:scratch", "codec": "fp16"})
        world.daemon.rpc("hbm.decompress", {"sel": "model:scratch"})


@flow("owner", "worker")
def compress_copy(world, struck):
    with struck() as it:
        world.daemon.rpc("hbm.compress", {"sel": "model/layers.0.weight", "codec": "int8", "mode": "copy", "as": "copy"})
    if it.done:
        expect(row_of(world.daemon, "copy")["encoding"] != "raw", "the copy is not encoded")


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


@flow("owner", "worker", "client")
def declared_order(world, struck):
    """Each lock asks for the next group, which comes meanwhile, and says which has left the window."""
    user = world.program()
    user.ask("open", 0)
    index, n = user.ask("model", "model", "ro", 0, 5000)
    user.ask("munlock", index)
    world.daemon.rpc("hbm.sleep", {"model": "model", "to": "host"})
    with struck():
        user.ask("morder", index, 1)
        user.ask("mwindow", index, 0, 32)
        for i in range(int(n)):
            user.ask("mlock", index, 5000, f"layers.{i}")
            user.ask("munlock", index, f"layers.{i}")
        user.ask("mdetach", index)
    world.at_last(lambda: world.daemon.rpc("hbm.wake", {"model": "model"}))


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


@flow("owner", "worker")
def private_copy(world, struck):
    """For another user, who may read."""
    user = world.program()
    user.ask("open", 0)
    user.alloc("common", 100000, KEEP, 0o644)
    let_others_in(world.daemon)
    name = f"~{os.geteuid()}/common"

    def attach(say):
        try:
            with as_user(OTHER):
                link = Client(world.daemon.socket)
            link.hello()
            link.attach(name)
            say("attached")
        except (Refused, ConnectionError) as error:
            say(error)

    with struck():
        other = Child(attach)  # a session whose link is lost is held until its process ends
        try:
            words = other.heard(PATIENCE)
            if words != "attached":
                raise ConnectionError(words)
        finally:
            other.kill()


@flow("owner", "worker", "client")
def free(world, struck):
    user = world.program()
    user.ask("open", 0)
    _, id_, _ = user.alloc("fresh", 100000, KEEP)
    user.ask("detach", 0)
    with struck():
        user.ask("free", id_)


@flow("owner", "worker")
def death(world, struck):
    user = world.program()
    user.ask("open", 0)
    user.alloc("fresh", 100000)
    user.attach("in-host", "rw")
    with struck():
        user.kill()
        world.wait_for(world.settled, "the dead client's session does not end")
    bring_back(world, "in-host", "host")


@flow("owner", "client")
def kick(world, struck):
    user = world.program()
    user.ask("open", 0)
    user.alloc("fresh", 100000)
    with struck():
        for session in world.daemon.rpc("hbm.sessions"):
            world.daemon.rpc("hbm.kick", {"session": session["session"]})
        with contextlib.suppress(ProgramError):
            user.attach("in-device", "ro")


@flow("owner")
def rpc(world, struck):
    with struck():
        for method in ("hbm.status", "hbm.ls", "hbm.events", "hbm.models", "hbm.sessions", "hbm.ops", "hbm.config",
                       "hbm.accounts", "hbm.devices", "hbm.who", "hbm.subscribe", "rpc.discover"):
            world.daemon.rpc(method)
        for method in ("hbm.show", "hbm.why_not_free"):
            world.daemon.rpc(method, {"sel": "*"})
        world.daemon.rpc("hbm.rename", {"name": "in-host", "to": "renamed"})
    if "renamed" in world.at_last(lambda: hash_of(world.daemon, "*")):
        world.at_last(lambda: world.daemon.rpc("hbm.rename", {"name": "renamed", "to": "in-host"}))


@flow("owner", "worker")
def worker_restart(world, struck):
    old = world.serving()["worker_pid"]
    with struck():
        os.kill(old, signal.SIGKILL)
        world.wait_for(lambda: has_other_worker(world, old), "no worker comes back")
    world.wait_for(lambda: has_other_worker(world, old), "no worker comes back")
    world.worn = True


@flow("owner", "ctl")
def drain(world, struck):
    """Until the daemon is another."""
    with struck():
        world.ctl("drain", "--verbose")
    old = world.daemon.pid
    os.kill(old, signal.SIGKILL)
    world.wait_for(lambda: world.daemon.pid != old and world.serving()["state"] == "ready", "no daemon comes back")
    bring_back(world, "in-device")
    for model in ("model", "coded"):
        world.at_last(lambda: world.daemon.rpc("hbm.wake", {"model": model}))
    world.worn = True


def has_other_worker(world, old):
    device = world.serving()
    return device["state"] == "ready" and device["worker_pid"] != old


@flow("owner", "keeper", "client")
def restart(world, struck):
    user = world.program()
    user.ask("open", 0)
    lease, _, _ = user.attach("in-device", "rw")
    old = world.daemon.pid
    with struck() as it:
        os.kill(old, signal.SIGKILL)
        world.wait_for(lambda: world.daemon.pid != old and world.serving()["state"] == "ready", "no daemon comes back")
        it.sum = world.seen(user, "sum", lease)
        user.ask("lock", lease, 5000)
    world.worn = True
    if it.done:
        world.sums.setdefault("in-device", it.sum)
        expect(it.sum == world.sums["in-device"], "wrong bytes")


@flow("owner")
def reload(world, struck):
    with struck():
        os.kill(world.daemon.pid, signal.SIGHUP)
        world.daemon.rpc("hbm.config")


@flow("owner", "worker")
def start_and_stop(world, struck):
    start_and_stop_of(world, struck, Daemon())


@flow("keeper")
def supervised_start_and_stop(world, struck):
    start_and_stop_of(world, struck, Daemon(supervise=True))


def start_and_stop_of(world, struck, other):
    """It may end at once, saying why."""
    try:
        with struck():
            with world.injector.preloaded():
                other.process = other.launch()
            world.wait_for(lambda: other.process.poll() is not None or is_ready(other), "it neither serves nor ends")
            other.stop()
        status = other.process.poll()
        if status:
            # Of its own failures at the start libuv says nothing.
            by_libuv = status == -signal.SIGABRT and world.injector.page.module.startswith(b"libuv")
            expect(by_libuv or status == 1 and "error: " in other.log, f"it ended with {status}:\n{other.log}")
            other.expect_death = True
    finally:
        other.close()


def is_ready(daemon):
    """By its own words: a question would be calls that may fail."""
    return ": ready" in daemon.log and " serves " in daemon.log


def screen(*words):
    @flow("ctl")
    def show(world, struck):
        with struck():
            world.ctl(*words)
    FLOWS["ctl_" + "_".join(words).replace("-", "_")] = FLOWS.pop("show")


for each in ("status", "devices", "devices --links", "who", "models", "sessions", "accounts", "ops", "ls", "--json ls", "show *", "why-not-free *",
             "hash model:model", "attach in-device", "attach model:model", "attach group:model/layers.0", "events --limit 3", "config",
             "rpc hbm.status", "help", "help load"):
    screen(*each.split())


@flow("ctl")
def ctl_changes(world, struck):
    """That are one call."""
    user = world.program()
    user.ask("open", 0)
    user.alloc("fresh", 100000, KEEP)
    publish(world, user, 0)
    user.ask("detach", 0)
    session = world.daemon.rpc("hbm.sessions")[0]["session"]
    with struck():
        world.ctl("priority", "fresh", "never")
        world.ctl("rename", "fresh", "fresher")
        world.ctl("free", "fresher")
        world.ctl("rm", "built")
        world.ctl("kick", session)


@flow("ctl")
def ctl_watched(world, struck):
    with struck():
        world.ctl("offload", "in-device", "--to", "host", watched=True)
    bring_back(world, "in-device")


@flow("ctl")
def ctl_operations(world, struck):
    with struck():
        op = world.ctl("offload", "in-device", "--to", "host", "--async").strip()
        world.ctl("wait", op)
        world.ctl("cancel", op)
        world.ctl("restore", "in-device", "--verbose")
        world.ctl("prefetch", "in-device", "--verbose")
        world.ctl("compress", "model/layers.0.weight", "--codec", "int8", "--mode", "copy", "--as", "copy")
        world.ctl("decompress", "copy")
    bring_back(world, "in-device")


def bring_back(world, name, tier="device"):
    """Where it lay before. A worker whose context was spoilt may still be about to end."""
    world.part()

    def moved():
        if tier_of(world.daemon, name) == tier:
            return True
        if tier == "device":
            world.daemon.rpc("hbm.restore", {"sel": name})
        else:
            world.daemon.rpc("hbm.offload", {"sel": name, "to": tier, "force": True})
        return True

    world.wait_for(moved, f"{name} does not come back")
