"""The owner killed in the middle of each operation, at each job that the operation takes (FAULTS 26, 28): a worker that hangs
there holds it. Every buffer is as it was before, the books balance, and a client that holds memory notices nothing."""
import os
import signal
import subprocess

import pytest

from conftest import BUILD, DEVICE
from helpers import ctl_done, get, hash_of, load_layers, put, row_of, settled, sweep, tier_of, used
from resuming import Holder, back, binary, killed, resumed  # noqa: F401 (a fixture)

DATA = bytes(range(256)) * 4000


class Held:
    """A daemon whose worker hangs at the n-th job of a kind from the time it is armed on, once."""

    def __init__(self, make_daemon, binary, job, nth):  # pylint: disable=redefined-outer-name
        self.daemon = make_daemon(supervise=True)
        self.flag = self.daemon.home / "struck"
        self.flag.touch()
        os.environ["HBM_WORKER_FAULT"], os.environ["HBM_WORKER_FAULT_ONCE"] = f"{job}:hang:{nth}", str(self.flag)
        try:
            self.daemon.start()
        finally:
            del os.environ["HBM_WORKER_FAULT"], os.environ["HBM_WORKER_FAULT_ONCE"]
        put(self.daemon, "w", DATA)
        load_layers(self.daemon, "m", 2)
        load_layers(self.daemon, "f", 1)
        self.file = self.daemon.home / "m.safetensors"
        self.holder = Holder(binary, self.daemon, "held")

    def arm(self):
        """A fresh worker, which counts from one."""
        worker = self.daemon.rpc("hbm.devices")[0]["worker_pid"]
        os.kill(worker, signal.SIGKILL)
        self.daemon.wait_for(lambda: [row for row in self.daemon.rpc("hbm.devices")
                                      if row["worker_pid"] not in (None, worker) and row["state"] == "ready"], 20)
        self.flag.unlink()

    def start(self, words):
        words = [str(word).replace("FILE", str(self.file)).replace("OUT", str(self.daemon.home / "out")) for word in words]
        return subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(self.daemon.runtime_dir), *words],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def picture(self):
        """What must be as it was, for what the operation under way is about and for all else."""
        rows = [{key: value for key, value in row.items() if key != "leases"} for row in self.daemon.rpc("hbm.ls")]
        tiers = {tier: used(self.daemon, tier) for tier in ("device", "disk")}
        if DEVICE == "host":  # a GPU's keeps released memory for a while, and a restart lets go of it
            tiers["host"] = used(self.daemon, "host")
        return sorted(rows, key=lambda row: row["id"]), hash_of(self.daemon, "*"), tiers

    def kill_while(self, words):
        before = self.picture()
        self.arm()
        operation = self.start(words)
        self.daemon.wait_for(self.flag.exists, 20)
        old, _ = killed(self.daemon)
        back(self.daemon, old)
        operation.wait(30)
        self.daemon.wait_for(lambda: resumed(self.daemon, self.holder))
        if words[0] not in ("attach", "wake"):  # which asks again, and has it; and which keeps what has come
            assert self.picture() == before
        assert self.daemon.rpc("hbm.status")["lost"] == 0
        self.holder.unharmed()


STEPS = {
    ("create", 1): (["offload", "w", "--to", "host"], ["compress", "f/layers.0.weight", "--codec", "int8"],
                    ["put", "fresh", "FILE"], ["load", "FILE", "--as", "n"]),
    ("create", 2): (["sleep", "m", "--to", "disk"], ["load", "FILE", "--as", "n"]),
    ("copy", 1): (["offload", "w", "--to", "host"], ["offload", "w", "--to", "disk"], ["restore", "w"], ["sleep", "m"],
                  ["wake", "m"], ["offload", "w", "--to", "host"], ["prefetch", "w"]),
    ("copy", 2): (["sleep", "m", "--to", "disk"], ["wake", "m"]),
    ("encode", 1): (["compress", "f/layers.0.weight", "--codec", "int8"],
                    ["compress", "m/layers.0.weight", "--codec", "bf16", "--mode", "copy", "--as", "copy"]),
    ("decode", 1): (["decompress", "f/layers.0.weight"],),
    ("file", 1): (["get", "w", "OUT"], ["put", "fresh", "FILE"], ["load", "FILE", "--as", "n"], ["save", "m", "OUT"]),
    ("hash", 1): (["hash", "w"],),
}


@pytest.mark.parametrize("job, nth", STEPS, ids=lambda value: str(value))
def test_an_owner_killed_while_a_job_is_under_way_leaves_all_as_it_was(make_daemon, binary, job, nth):  # noqa: F811
    """FAULTS 26: and the same operation, asked again, is done."""
    held = Held(make_daemon, binary, job, nth)
    try:
        if job == "decode":
            ctl_done(held.daemon, "compress", "f/layers.0.weight", "--codec", "fp16")
        for words in STEPS[job, nth]:
            held.kill_while(words)
            again = held.start(words)
            assert again.wait(30) == 0, words
        assert held.holder.end() == 0
        assert get(held.daemon, "w") == DATA
        sweep(held.daemon)
    finally:
        held.holder.process.kill()
        held.holder.process.wait()


def test_an_attach_that_waits_for_its_buffer_has_it_from_the_next_owner(make_daemon, binary):  # noqa: F811
    """FAULTS 26: the copy back from the disk is under way when the owner dies; the call is asked again."""
    held = Held(make_daemon, binary, "copy", 1)
    try:
        ctl_done(held.daemon, "offload", "w", "--to", "disk")
        held.kill_while(["attach", "w"])
        assert tier_of(held.daemon, "w") == "device" and get(held.daemon, "w") == DATA
        assert held.holder.end() == 0
        held.daemon.wait_for(lambda: settled(held.daemon))
        assert row_of(held.daemon, "w")["leases"] == []
    finally:
        held.holder.process.kill()
        held.holder.process.wait()
