"""The Python package in an event loop: calls are awaited, and the loop goes on meanwhile."""
import asyncio
import gc
import socket

import pytest

from helpers import load_layers, module_daemon, put, row_of, shared, used
from test_python import hbm, session

import hbm.aio


def run(shared, work):
    """work(session), in a loop of its own."""
    async def main():
        async with hbm.aio.connect(shared.runtime_dir) as session:
            return await work(session)

    result = asyncio.run(main())
    gc.collect()
    return result


def test_attach_offload_and_restore_are_awaited(shared):
    put(shared, "w", bytes(range(256)))

    async def work(session):
        buffer = await session.attach("w")
        buffer.unlock()
        await session.offload("w", "disk")
        assert row_of(shared, "w")["tier"] == "disk"
        await session.restore("w")
        assert row_of(shared, "w")["tier"] == "device"
        await hbm.aio.lock(buffer)
        assert [device.index for device in await session.devices()] == [0]
        with pytest.raises(hbm.NotFound):
            await session.attach("nothing")
        return bytes(buffer.numpy())

    assert run(shared, work) == bytes(range(256))


def test_a_model_sleeps_and_wakes(shared):
    load_layers(shared, "m", 3)

    async def work(session):
        tensors = await hbm.aio.load_model("m", "numpy", session=session.session)
        before = {name: array.tobytes() for name, array in tensors.items()}
        model = await session.model("m")
        model.unlock()
        del tensors
        gc.collect()
        await session.sleep("m", codec="fp16")
        assert used(shared) == 0
        await session.wake("m")
        await hbm.aio.lock(model, "layers.1")
        await hbm.aio.lock(model)
        with pytest.raises(hbm.NotFound):
            await session.wake("another")
        with pytest.raises(hbm.NoDaemon, match="control.sock"):
            hbm.rpc.call("/nowhere", "hbm.models", {}, 1)
        return before.keys() == model.keys()

    assert run(shared, work)


def test_the_loop_goes_on_while_a_call_waits(shared, session):
    """The model is being built: who asks waits, until this same loop has committed it."""
    build = session.build("m", {"w": ("U8", (3,))})

    async def work(other):
        asked = asyncio.create_task(other.model("m", wait=True))
        await asyncio.sleep(0)
        assert not asked.done()
        build["w"].numpy()[:] = 5
        build.commit()
        return (await asked)["w"].numpy().tolist()

    assert run(shared, work) == [5, 5, 5]


def test_a_cancelled_task_cancels_its_operation(shared, session):
    put(shared, "w", bytes(1 << 20))
    holder = session.attach("w")  # locked: the move waits for it

    def moves(state):
        return [row for row in shared.rpc("hbm.ops") if row["verb"] == "offload" and row["state"] == state]

    async def work(other):
        moving = asyncio.create_task(other.offload("w", "host"))
        await asyncio.to_thread(shared.wait_for, lambda: moves("running"))
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
        await asyncio.to_thread(shared.wait_for, lambda: not moves("running"))
        assert moves("cancelled"), shared.rpc("hbm.ops")

    run(shared, work)
    assert row_of(shared, "w")["tier"] == "device" and len(holder.numpy()) == 1 << 20


def test_a_daemon_that_does_not_answer_in_time_is_said_so(tmp_path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "control.sock"))
        silent.listen()
        with pytest.raises(hbm.Timeout, match="hbm.models has not ended in 0.05 s"):
            hbm.rpc.call(tmp_path, "hbm.models", {}, 0.05)
