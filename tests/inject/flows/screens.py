"""Everything that is asked and shown."""
from helpers import hash_of
from wire import KEEP
from flows.common import FLOWS, bring_back, flow, publish


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


def screen(*words):
    @flow("ctl")
    def show(world, struck):
        with struck():
            world.ctl(*words)
    FLOWS["ctl_" + "_".join(words).replace("-", "_")] = FLOWS.pop("show")


for each in ("status", "devices", "devices --links", "who", "models", "sessions", "accounts", "ops", "ls", "--json ls", "show *", "why-not-free *",
             "hash model:model", "attach in-device", "attach model:model", "attach group:model/layers.0", "events --limit 3", "config",
             "rpc hbm.status", "help", "help load", "advise", "advise model:model"):
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
