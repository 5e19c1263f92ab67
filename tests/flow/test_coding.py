"""Compression that takes a while: how far it is, and what is left of one that ends between two chunks (FAULTS 14, 20, 24). On the host
device, whose chunks are of 16 MiB."""
import os

import pytest

from helpers import (MIB, ctl_done, ctl_refused, hash_of, host_only, row_of, safetensors, sweep, used)
from test_faults_worker import Faulty
from test_links import CHUNK, CHUNKS, begin, moved_by, op_of

DATA = os.urandom(MIB) * (CHUNKS * 16)
WAYS = [("fp16", None), ("int8", "channel"), ("int8", "group:32")]
IDS = ["fp16", "int8-channel", "int8-group"]


def how(codec, granularity):
    return ["--codec", codec, *(["--granularity", granularity] if granularity else [])]


def at_every_chunk(action):
    """Of the n-th encoding, then of the n-th decoding; one encoding goes well in between."""
    return ",".join(f"{job}:{action}:{n}@{n}" for job in ("encode", "decode") for n in range(1, CHUNKS + 1))


def load(daemon):
    path = safetensors(daemon.home / "w.safetensors", {"w": ("F32", (1024, len(DATA) // 4096), DATA)})
    ctl_done(daemon, "load", path, "--as", "m")


def fail_everywhere(daemon, codec, granularity, fail):
    load(daemon)

    def each(*command):
        before, row, held = hash_of(daemon, "*"), row_of(daemon, "m/w"), used(daemon)
        for _ in range(CHUNKS):
            fail(*command)
            daemon.wait_for(lambda: daemon.rpc("hbm.devices")[0]["state"] == "ready")
            assert hash_of(daemon, "*") == before and row_of(daemon, "m/w") == row
            daemon.wait_for(lambda: used(daemon) == held)
        ctl_done(daemon, *command)

    before = hash_of(daemon, "*")
    each("compress", "m/w", *how(codec, granularity))
    coded = hash_of(daemon, "*")
    each("decompress", "m/w")
    assert row_of(daemon, "m/w")["encoding"] == "raw" and hash_of(daemon, "*") not in (before, coded)
    ctl_done(daemon, "rm", "m")
    sweep(daemon)


@host_only
@pytest.mark.parametrize("codec, granularity", WAYS, ids=IDS)
def test_a_compression_that_is_cancelled_at_any_chunk_has_done_nothing(make_daemon, monkeypatch, codec, granularity):
    """FAULTS 14: all or nothing; until then it tells the bytes of the chunks that are done."""
    daemon = make_daemon()
    held = daemon.home / "held"
    monkeypatch.setenv("HBM_WORKER_FAULT", at_every_chunk("hold"))
    monkeypatch.setenv("HBM_WORKER_FAULT_HELD", str(held))
    daemon.start()
    seen = n = 0

    def cancel(*command):
        nonlocal seen, n
        op = begin(daemon, *command)
        daemon.wait_for(lambda: held.exists() and held.stat().st_size > seen)
        seen, n = held.stat().st_size, n + 1
        assert op_of(daemon, op)["bytes_total"] == len(DATA)
        ctl_done(daemon, "cancel", op)
        daemon.wait_for(lambda: op_of(daemon, op)["state"] != "running")
        assert op_of(daemon, op)["state"] == "cancelled"

    fail_everywhere(daemon, codec, granularity, cancel)
    assert n == 2 * CHUNKS


@host_only
def test_a_compression_that_fails_at_any_chunk_has_done_nothing(make_daemon, monkeypatch):
    """FAULTS 20."""
    monkeypatch.setenv("HBM_WORKER_FAULT", at_every_chunk("io"))
    daemon = make_daemon().start()
    fail_everywhere(daemon, "int8", "channel", lambda *command: ctl_refused(daemon.ctl(*command), 1, "m/w"))


@host_only
def test_a_compression_whose_worker_dies_in_the_middle_has_done_nothing(make_daemon):
    """FAULTS 24."""
    for job, command in (("encode", ["compress", "m/w", "--codec", "fp16"]), ("decode", ["decompress", "m/w"])):
        struck = Faulty(f"{job}:kill:1@2", make_daemon)
        daemon = struck.daemon
        load(daemon)
        if job == "decode":
            ctl_done(daemon, "compress", "m/w", "--codec", "fp16")
        before, row, held = hash_of(daemon, "*"), row_of(daemon, "m/w"), used(daemon)
        ctl_refused(daemon.ctl(*command), 1, "worker died")
        daemon.wait_for(lambda s=struck: s.restarts() == 1 and s.ready())
        assert hash_of(daemon, "*") == before and row_of(daemon, "m/w") == row
        daemon.wait_for(lambda d=daemon, n=held: used(d) == n)
        ctl_done(daemon, *command)


@host_only
def test_how_far_a_compression_is_is_told(make_daemon, monkeypatch):
    """While the third chunk is held up, the first is done and the second is the device's."""
    daemon = make_daemon()
    held = daemon.home / "held"
    monkeypatch.setenv("HBM_WORKER_FAULT", "encode:hold:1@3,decode:hold:1@3")
    monkeypatch.setenv("HBM_WORKER_FAULT_HELD", str(held))
    daemon.start()
    load(daemon)
    for command in (["compress", "m/w", "--codec", "fp16"], ["decompress", "m/w"]):
        op = begin(daemon, *command)
        row = moved_by(daemon, op, CHUNK)
        assert (row["state"], row["bytes_done"]) == ("running", CHUNK) and row["bytes_total"] == len(DATA)
        ctl_done(daemon, "cancel", op)
        daemon.wait_for(lambda o=op: op_of(daemon, o)["state"] == "cancelled")
        ctl_done(daemon, *command)
