"""How flows are told of, and what they share."""
from world import Broken
from helpers import tier_of

FLOWS = {}  # by name: the function, and who may be struck
NO_THREAD = 1  # to hbm_open


def flow(*roles):
    def add(function):
        FLOWS[function.__name__] = (function, roles)
        return function
    return add


def expect(condition, words):
    if not condition:
        raise Broken(words)


def under_way(world, op):
    """Still, a moment later."""
    return world.daemon.rpc("hbm.wait", {"op": op, "timeout_seconds": 0.02})["state"] in ("queued", "running")


def publish(world, user, flags):
    index, _ = user.ask("publish", "built", flags, 5000, 2, 1000)
    world.seen(user, "mfill", index, 5 + flags)
    user.ask("commit", index)


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
