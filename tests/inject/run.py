#!/usr/bin/env python3
"""Makes the n-th call of memory and kernel fail in owner, worker, client and hbmctl, over every flow (FAULTS 33).

usage: run.py all | short [FLOW...]; run.py one FLOW ROLE N VARIANT

Each n is a run of the flow: it succeeds or ends in a typed error, nobody crashes or hangs, and afterwards the books are as
they were and every byte that was there before is. HBM_INJECT_TRACE=1 makes the struck call say where it was.
"""
import argparse
import contextlib
import json
import os
import signal
import sys
import time
import types

from world import DEVICE, World, typed
from flows import FLOWS
from helpers import built_client

SAMPLES = 8
SLOW, SLOWER = ("restart", "worker_restart", "start_and_stop", "supervised", "drain", "ctl_"), 3  # each attempt starts a daemon or a program
GIVE_UP = 5
BOUND = 60  # seconds of a short run
WAITING = 2  # processes to a processor: one waits more than it does


class Run:
    def __init__(self, client_path):
        self.client_path = client_path
        self.tried, self.failed, self.world = 0, 0, None
        self.choices = 1  # errors that the last call struck may have
        self.sites = set()

    def fresh_world(self):
        if not self.world:
            self.world = World(self.client_path)
        return self.world

    def close_world(self):
        if self.world:
            world, self.world = self.world, None
            world.close()

    def give_up_world(self):
        """After what must never happen nothing of it can be trusted."""
        world, self.world = self.world, None
        if not world:
            return
        for process in [world.user.process if world.user else None, world.daemon.process]:
            if process and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        with contextlib.suppress(Exception):
            world.daemon.close()

    def attempt(self, name, role, n, variant):
        """Once through the flow, with its n-th call struck; 0 only counts. Returns how often it could have been struck."""
        function, _ = FLOWS[name]
        world = self.fresh_world()
        injector = world.injector

        @contextlib.contextmanager
        def struck():
            it = types.SimpleNamespace(done=False)
            injector.arm(role, n, variant)
            try:
                yield it
                it.done = True
            except Exception as error:  # pylint: disable=broad-except
                if n == 0 or not typed(error):
                    raise
                it.error = error
            finally:
                injector.disarm()

        try:
            function(world, struck)
            count = injector.page.count
            world.clean()
            world.check()
            if world.worn:
                self.close_world()
        except Exception as error:  # pylint: disable=broad-except
            where = injector.where() if injector.struck else "nothing struck"
            self.failed += 1
            print(f"FAIL - {name}, {role}, call {n}.{variant} ({where})\n       {type(error).__name__}: {error}", flush=True)
            if os.environ.get("HBM_INJECT_TRACE"):
                print(world.daemon.log[-6000:], flush=True)
            self.give_up_world()
            self.choices = 1
            return 0
        if injector.struck:
            self.tried += 1
            self.choices = injector.page.choices
            self.sites.add((role, injector.page.module.decode(), injector.page.caller))
        return count

    def flow(self, name, role, samples):
        """Every n with every error that the call may have; or so many of them, with one each."""
        self.attempt(name, role, 0, 0)
        total = self.attempt(name, role, 0, 0)
        tried, failed, began = self.tried, self.failed, time.monotonic()
        for n in range(1, total + 1, max(1, total // samples) if samples else 1):
            self.attempt(name, role, n, n if samples else 0)
            for variant in range(1, 0 if samples else self.choices):
                self.attempt(name, role, n, variant)
            if self.failed - failed >= GIVE_UP:
                break
        if self.failed == failed:
            print(f"ok - {name}, {role}: {self.tried - tried} failures of {total} calls, {time.monotonic() - began:.1f} s", flush=True)


def share(client_path, pairs, samples, queue, writer):
    """What one process does of it all: always the next that nobody has."""
    run = Run(client_path)
    until = time.monotonic() + BOUND
    while word := os.read(queue, 2):
        name, role = pairs[int.from_bytes(word, sys.byteorder)]
        if samples and time.monotonic() > until:
            print(f"left out - {name}, {role}: {BOUND} s are over", flush=True)
            continue
        run.flow(name, role, samples // SLOWER if name.startswith(SLOW) else samples)
    run.close_world()
    os.write(writer, json.dumps([run.tried, run.failed, sorted(run.sites)]).encode())


def in_parallel(client_path, pairs, samples, n):
    """Sums of what n processes say."""
    tried, failed, sites, readers = 0, 0, set(), []
    queue, filler = os.pipe()
    os.write(filler, b"".join(i.to_bytes(2, sys.byteorder) for i in range(len(pairs))))
    os.close(filler)
    for _ in range(n):
        reader, writer = os.pipe()
        if os.fork() == 0:
            status = 1
            try:
                share(client_path, pairs, samples, queue, writer)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(writer)
        readers.append(reader)
    for reader in readers:
        with open(reader, "rb") as end:
            words = end.read()
        one = json.loads(words) if words else [0, 1, []]
        tried, failed, sites = tried + one[0], failed + one[1], sites | {tuple(site) for site in one[2]}
        os.wait()
    print(f"{tried} failures injected at {len(sites)} places, {failed} wrong")
    return failed or not tried


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["all", "short", "one"])
    parser.add_argument("words", nargs="*", help="flows, all if there are none; for one: FLOW ROLE N VARIANT")
    arguments = parser.parse_args()
    if arguments.how == "one":
        name, role, n, variant = arguments.words
        run = Run(built_client())
        run.attempt(name, role, 0, 0)
        run.attempt(name, role, int(n), int(variant))
        run.close_world()
        return run.failed
    # What does not touch the device is the same everywhere.
    pairs = [(name, role if DEVICE == "host" else f"cuda {role}") for name in arguments.words or FLOWS for role in FLOWS[name][1]
             if DEVICE == "host" or role in ("worker", "client")]
    # One GPU has room for one daemon that hands out most of it.
    n = min(len(pairs), os.cpu_count() * WAITING if DEVICE == "host" else 1)
    return in_parallel(built_client(), pairs, SAMPLES if arguments.how == "short" else 0, n)


if __name__ == "__main__":
    sys.exit(main())
