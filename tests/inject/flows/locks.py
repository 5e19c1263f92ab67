"""Locks of what moves, and a client that lets go."""
from world import PATIENCE
from helpers import Child, Client
from wire import LOCK_AWAY, UNLOCKED, Refused
from flows.common import NO_THREAD, bring_back, expect, flow, under_way


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
