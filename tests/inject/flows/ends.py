"""Ends and starts of clients, workers and daemons."""
import contextlib
import os
import signal

from conftest import Daemon
from helpers import ProgramError
from flows.common import bring_back, expect, flow


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
