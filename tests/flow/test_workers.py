"""Workers are disposable: killed, hung, failing or dying again and again, in every job (FAULTS 24). HBM_WORKER_FAULT is in
daemon/worker/fault.c."""
import os
import stat
import time

import pytest

from conftest import BUILD, DEVICE
from helpers import MIB, Client, ctl_done, ctl_refused, get, hash_of, host_only, put, refused, serves, used
from test_faults_worker import STRIKES, as_it_was, strike

WORKER = "hbm-worker" if DEVICE == "host" else "hbm-worker-cuda"
PATIENCE = f"worker_patience_seconds = {1 if DEVICE == 'host' else 6}\n"  # a GPU's driver takes its time to start
WORDS = {"hang": "did not answer in time", "kill": "killed by signal 9"}


def ended(daemon):
    return daemon.rpc("hbm.devices")[0]["worker_ended"]


@pytest.mark.parametrize("job", STRIKES)
def test_a_worker_that_hangs_in_a_job_fails_that_job_and_is_replaced(make_daemon, job):
    """FAULTS 24: each job has its time, by its bytes."""
    def impatient():
        return make_daemon(config=PATIENCE)

    faulty, before, rows, held, result = strike(impatient, job, "hang")
    ctl_refused(result, 1, "worker died", WORDS["hang"], job)
    as_it_was(faulty, before, rows, held)
    assert faulty.restarts() == 1 and WORDS["hang"] in ended(faulty.daemon)["why"]
    assert STRIKES[job](faulty.daemon).returncode == 0


@pytest.mark.parametrize("job", [job for job in STRIKES if job not in ("copy", "encode")])
def test_an_error_in_any_job_is_that_jobs_alone(make_daemon, job):
    """FAULTS 24: the other jobs and actions are in test_faults_worker.py."""
    faulty, before, rows, held, result = strike(make_daemon, job, "io")
    ctl_refused(result, 1, "reading or writing failed")
    as_it_was(faulty, before, rows, held)
    assert faulty.restarts() == 0 and STRIKES[job](faulty.daemon).returncode == 0


@pytest.mark.parametrize("job", STRIKES)
def test_a_sticky_error_ends_the_worker_after_its_answer_and_another_serves(make_daemon, job):
    """FAULTS 24: on a GPU a kernel faults in earnest."""
    faulty, before, rows, held, result = strike(make_daemon, job, "sticky")
    ctl_refused(result, 1, "the CUDA driver refused")
    faulty.daemon.wait_for(lambda: faulty.restarts() == 1)
    as_it_was(faulty, before, rows, held)
    assert "ended with status 4" in ended(faulty.daemon)["why"]
    assert STRIKES[job](faulty.daemon).returncode == 0


class Switched:
    """A daemon whose workers are what the test says at the time, by a file beside it."""

    def __init__(self, make_daemon, config="", supervise=False):
        self.daemon = make_daemon(config=config, supervise=supervise)
        self.mood = self.daemon.home / "mood"
        self.mood.write_text("")
        wrapper = self.daemon.home / WORKER
        wrapper.write_text(f'#!/bin/sh\nHBM_WORKER_FAULT=$(cat {self.mood}) exec {BUILD / WORKER} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        with open(self.daemon.home / "hbmd.conf", "a") as conf:
            conf.write(f"worker_dir = {self.daemon.home}\n")
        self.daemon.options = ["--config", str(self.daemon.home / "hbmd.conf")]
        self.daemon.start()

    def kill_worker(self):
        os.kill(self.daemon.rpc("hbm.devices")[0]["worker_pid"], 9)

    def device(self):
        return self.daemon.rpc("hbm.devices")[0]


MOODS = [("start:kill", "killed by signal 9"), ("start:lost", "the device does not answer"), ("start:hang", "did not answer in time")]


@pytest.mark.parametrize("mood, words", MOODS, ids=[mood.split(":")[1] for mood, _ in MOODS])
def test_a_device_whose_workers_die_at_the_start_is_marked_and_tried_again(make_daemon, mood, words):
    """FAULTS 24, a device lost: the reason and a remedy are said, nothing is put there, what lies there is kept."""
    switched = Switched(make_daemon, PATIENCE)
    daemon = switched.daemon
    put(daemon, "w", b"w" * MIB)
    before, held = hash_of(daemon, "w"), used(daemon)
    switched.mood.write_text(mood)
    switched.kill_worker()
    daemon.wait_for(lambda: switched.device()["state"] == "failed", 30)
    row = switched.device()
    assert words in row["problem"] and "tried again" in row["remedy"] and row["worker_ended"]["served_again_after"] is None
    assert words in ctl_done(daemon, "devices") and "tried again" in ctl_done(daemon, "status")
    with Client(daemon.socket) as link:
        link.hello()
        with refused("DEVICE_LOST", words):
            link.alloc(MIB)
    assert daemon.rpc("hbm.ls")[0]["state"] == "ready" and used(daemon) == held
    switched.mood.write_text("")
    daemon.wait_for(lambda: switched.device()["state"] == "ready", 20)
    assert hash_of(daemon, "w") == before and serves(daemon)
    assert switched.device()["problem"] is None and switched.device()["worker_ended"]["served_again_after"] > 0


def test_a_storm_of_restarts_backs_off(make_daemon):
    switched = Switched(make_daemon)
    daemon = switched.daemon
    switched.mood.write_text("start:kill")
    switched.kill_worker()
    daemon.wait_for(lambda: switched.device()["state"] == "failed")
    before, began = switched.device()["worker_restarts"], time.monotonic()
    time.sleep(2)
    started, seconds = switched.device()["worker_restarts"] - before, time.monotonic() - began
    # From 50 ms, doubled each time: however long the machine took, never as many as at the first pace.
    assert 1 <= started <= 6 + seconds / 5
    assert daemon.log.count("is not served") == 1


@host_only
@pytest.mark.parametrize("action", ["kill", "hang", "io"])
def test_a_worker_that_fails_at_the_drivers_word_is_nobodys_loss(make_daemon, action):
    """FAULTS 24, QUERY: whoever asks is answered without it."""
    os.environ["HBM_WORKER_FAULT"] = f"query:{action}:2"
    try:
        daemon = make_daemon(config=PATIENCE).start()
    finally:
        del os.environ["HBM_WORKER_FAULT"]
    put(daemon, "w", b"w" * MIB)
    daemon.rpc("hbm.who")
    restarts = 0 if action == "io" else 1
    daemon.wait_for(lambda: daemon.rpc("hbm.devices")[0]["worker_restarts"] == restarts)
    assert get(daemon, "w") == b"w" * MIB and serves(daemon)


def test_how_a_worker_ended_and_how_soon_another_served_is_told(make_daemon):
    daemon = make_daemon().start()
    assert ended(daemon) is None
    put(daemon, "w", b"w" * MIB)
    began = time.monotonic()
    os.kill(daemon.rpc("hbm.devices")[0]["worker_pid"], 9)
    while not daemon.rpc("hbm.devices")[0]["worker_restarts"]:
        time.sleep(0.001)
    hash_of(daemon, "w")
    served = time.monotonic() - began
    daemon.wait_for(lambda: ended(daemon)["served_again_after"])
    said = ended(daemon)
    assert WORDS["kill"] in said["why"] and said["seconds_ago"] >= 0
    print(f"from SIGKILL to a new worker's first word {said['served_again_after'] * 1e3:.0f} ms, to the first hash {served * 1e3:.0f} ms")
    assert "served again after" in ctl_done(daemon, "status")
