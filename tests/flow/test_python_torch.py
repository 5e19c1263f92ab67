"""The allocator that torch's MemPool takes, by its symbols and in host memory: what it allocates is the broker's."""
import ctypes
import gc
import os

import pytest

from conftest import BUILD
from helpers import MIB, module_daemon, shared, used
from test_python import hbm, in_a_process, session

from hbm import _c


@pytest.fixture
def engine(session):
    """libhbm, within the session's group "engine"; what a test leaves goes with it."""
    _c.lib.hbm_torch_use(session._open().claim, b"engine")
    yield _c.lib
    _c.lib.hbm_torch_use(None, None)
    for block in allocated:
        _c.lib.hbm_torch_free(block, 0, 0, None)
    allocated.clear()


allocated = []


def allocate(size, device=0):
    block = _c.lib.hbm_torch_alloc(size, device, None)
    allocated.append(block)
    return block


def test_what_torch_allocates_is_zeroed_memory_of_the_session_and_goes_with_free(shared, engine):
    first, second = allocate(2 * MIB), allocate(100)
    assert ctypes.string_at(first, 2 * MIB) == bytes(2 * MIB)
    ctypes.memset(first, 7, 2 * MIB)
    rows = shared.rpc("hbm.ls")
    assert [(row["group"], row["size"]) for row in rows] == [("engine", 2 * MIB), ("engine", 100)]
    assert all(row["leases"] for row in rows)
    engine.hbm_torch_free(first, 2 * MIB, 0, None)
    shared.wait_for(lambda: [row["size"] for row in shared.rpc("hbm.ls")] == [100])
    engine.hbm_torch_free(second, 100, 0, None)
    engine.hbm_torch_free(second, 100, 0, None)
    engine.hbm_torch_free(None, 0, 0, None)
    shared.wait_for(lambda: shared.rpc("hbm.ls") == [])


def test_a_group_that_is_unlocked_leaves_and_comes_back_at_its_addresses(shared, session, engine):
    blocks = [allocate(64 << 10) for _ in range(150)]  # more than one request locks
    for i, block in enumerate(blocks):
        ctypes.memset(block, i, 64 << 10)
    engine.hbm_torch_unlock(b"engine", None, 0)
    session.offload("group:engine", "host", force=True).wait(60)
    assert used(shared) == 0
    engine.hbm_torch_lock(b"engine", 60000)
    assert all(ctypes.string_at(block, 64 << 10) == bytes([i]) * (64 << 10) for i, block in enumerate(blocks))


def test_what_cannot_be_had_is_null_with_the_reason(shared, engine):
    assert allocate(1 << 60) is None
    assert engine.hbm_last_error_detail()
    assert allocate(100, 7) is None
    assert b"device 7" in engine.hbm_last_error_detail()
    with pytest.raises(ValueError):
        engine.hbm_torch_use(None, b"x" * 1000)
    assert shared.rpc("hbm.ls") == []


def test_memory_outlives_the_session_that_it_was_allocated_by(shared):
    session = hbm.connect(shared.runtime_dir)
    _c.lib.hbm_torch_use(session._open().claim, b"engine")
    block = _c.lib.hbm_torch_alloc(100, 0, None)
    _c.lib.hbm_torch_use(None, None)
    session.close()
    gc.collect()
    ctypes.memset(block, 1, 100)
    assert len(shared.rpc("hbm.sessions")) == 1
    _c.lib.hbm_torch_free(block, 100, 0, None)
    shared.wait_for(lambda: shared.rpc("hbm.sessions") == [])


def test_a_thread_that_never_asked_allocates_from_the_processs_own_session(shared):
    ended = in_a_process(shared, """
        import ctypes
        from hbm import _c
        block = _c.lib.hbm_torch_alloc(1000, 0, None)
        ctypes.memset(block, 1, 1000)
        assert len(s.devices()) == 1 and block
        _c.lib.hbm_torch_unlock(b"engine", None, 0)
    """)
    assert (ended.returncode, ended.stderr) == (0, "")
    shared.wait_for(lambda: shared.rpc("hbm.ls") == [])


def test_the_symbols_are_exported_for_dlsym(shared):
    library = ctypes.CDLL(os.environ.get("HBM_LIBRARY", str(BUILD / "libhbm.so")))
    assert library.hbm_torch_alloc and library.hbm_torch_free


def test_a_group_comes_back_whole_or_not_at_all(make_daemon):
    """150 blocks of 64 KiB beside what is locked: the first 128 would fit."""
    daemon = make_daemon(config="device_bytes = 12MiB\nhost_bytes = 64MiB\nmemory_wait_seconds = 1\n").start()
    with hbm.connect(daemon.runtime_dir) as session:
        _c.lib.hbm_torch_use(session._open().claim, b"engine")
        blocks = [allocate(64 << 10) for _ in range(150)]
        for i, block in enumerate(blocks):
            ctypes.memset(block, i, 64 << 10)
        _c.lib.hbm_torch_use(None, None)
        _c.lib.hbm_torch_unlock(b"engine", None, 0)
        session.offload("group:engine", "host", force=True).wait(60)
        hog = session.alloc((3 * MIB,), name="hog")
        with pytest.raises((hbm.NoMemory, hbm.Timeout)):
            _c.lib.hbm_torch_lock(b"engine", 3000)
        session.offload("group:engine", "host", force=True).wait(60)
        assert used(daemon) == 3 * MIB
        hog.detach()
        del hog
        gc.collect()
        _c.lib.hbm_torch_lock(b"engine", 60000)
        assert all(ctypes.string_at(block, 64 << 10) == bytes([i]) * (64 << 10) for i, block in enumerate(blocks))
        for block in blocks:
            _c.lib.hbm_torch_free(block, 0, 0, None)
        allocated.clear()
    gc.collect()
