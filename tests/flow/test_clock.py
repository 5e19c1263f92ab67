"""Clocks that do not do what clocks do (FAULTS 32): the wall clock steps back, everything stands still for a while."""
import os
import signal
import subprocess
import time

import pytest

from conftest import ROOT
from helpers import ctl_done, ctl_refused, events, get, host_only, load_layers, put, settled, sweep
from resuming import Holder, back, binary, killed, resumed  # noqa: F401 (a fixture)

DATA = bytes(range(256)) * 4000


@pytest.fixture
def stepping_clock(tmp_path, monkeypatch):
    """Whatever is started from now on has it."""
    path = tmp_path / "clock.so"
    subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC",
                    str(ROOT / "tests/flow/clock.c"), "-o", str(path)], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(path))
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0")


def test_no_wait_depends_on_a_wall_clock_that_steps_back(stepping_clock, make_daemon, binary):  # noqa: F811
    """FAULTS 32: moves, bounded waits, kills of the owner and clients that come back, all in a day that runs backwards."""
    daemon = make_daemon(supervise=True, config="reclaim_seconds = 0.3\n").start()
    holder = Holder(binary, daemon)
    try:
        put(daemon, "w", DATA)
        load_layers(daemon, "n", 2)
        for _ in range(2):
            ctl_done(daemon, "offload", "w", "--to", "disk"), ctl_done(daemon, "restore", "w")
            ctl_refused(daemon.ctl("free", "mine"), 1, holder.process.pid)
            old, _ = killed(daemon)
            assert holder.ask("ping")["error"] == 0
            back(daemon, old)
            daemon.wait_for(lambda: resumed(daemon, holder))
            holder.unharmed()
            assert get(daemon, "w") == DATA
        at = [event["time"] for event in daemon.rpc("hbm.events")]
        assert len(at) > 1 and at == sorted(at, reverse=True), "the clock did step back"
        assert [session["seconds"] < 3600 for session in daemon.rpc("hbm.sessions")] == [True]
        assert holder.end() == 0
        daemon.wait_for(lambda: settled(daemon))
        sweep(daemon)
    finally:
        holder.process.kill()
        holder.process.wait()


@host_only
def test_everything_standing_still_for_longer_than_any_patience_costs_nothing(make_daemon, binary):  # noqa: F811
    """FAULTS 32: suspended and resumed; here even the monotonic clock has gone on meanwhile."""
    daemon = make_daemon(supervise=True, config="reclaim_seconds = 0.3\n").start()
    holder = Holder(binary, daemon)
    try:
        put(daemon, "w", DATA * 8)
        frozen = [daemon.process.pid, daemon.pid, daemon.rpc("hbm.devices")[0]["worker_pid"], holder.process.pid]
        for tier in ("disk", "host"):
            ctl_done(daemon, "offload", "w", "--to", tier, "--async")
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(1.5)
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
            holder.unharmed()
            daemon.wait_for(lambda: not daemon.rpc("hbm.status")["ops"])
            ctl_done(daemon, "restore", "w")
            assert get(daemon, "w") == DATA * 8
        assert holder.process.pid not in [event.get("pid") for event in events(daemon, "session.gone")]
        assert holder.end() == 0
    finally:
        holder.process.kill()
        holder.process.wait()
