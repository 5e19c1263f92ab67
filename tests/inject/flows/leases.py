"""What a client has: buffers and models, shared and given back."""
import os

from world import PATIENCE
from helpers import OTHER, Child, Client, as_user, let_others_in
from wire import IN_PLACE, KEEP, Refused
from flows.common import bring_back, expect, flow


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
