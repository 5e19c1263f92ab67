"""The Python package over libhbm: sharing without copies, lifetimes, errors as exceptions. NumPy and host memory."""
import ctypes
import gc
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading

import numpy
import pytest

from conftest import BUILD, ROOT
from helpers import ctl_done, get, load_layers, module_daemon, put, row_of, safetensors, shared, sweep, used

PACKAGE = ROOT / "client" / "python"
sys.path.insert(0, str(PACKAGE))
os.environ.setdefault("HBM_LIBRARY", str(BUILD / "libhbm.so"))

import hbm


@pytest.fixture
def session(shared):
    with hbm.connect(shared.runtime_dir, client="python") as session:
        yield session
    gc.collect()
    sweep(shared)


def leases(daemon, name):
    return row_of(daemon, name)["leases"]


def environment(daemon):
    """Of an interpreter that imports hbm."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE), "HBM_RUNTIME_DIR": str(daemon.runtime_dir)}


def in_a_process(daemon, code):
    """The code, with hbm, numpy and a session `s`, in an interpreter of its own."""
    start = "import sys, numpy, hbm\ns = hbm.connect()\n"
    return subprocess.run([sys.executable, "-c", start + textwrap.dedent(code)], env=environment(daemon), text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


# ---- The binding ----

def test_the_structs_are_those_of_the_header(tmp_path):
    from hbm import _c

    lines = [f'printf("{name} %zu", sizeof(struct {name}));' + "".join(
        f'printf(" %zu", offsetof(struct {name}, {"as" if field == "as_name" else field}));' for field, *_ in struct._fields_)
        + 'puts("");' for name, struct in _c.STRUCTS.items()]
    program = tmp_path / "layout.c"
    program.write_text("#include <stdio.h>\n#include <stddef.h>\n#include \"client/hbm.h\"\nint main(void) {" + "\n".join(lines) + "}")
    subprocess.run(["gcc", f"-I{ROOT}", str(program), "-o", str(tmp_path / "layout")], check=True)
    theirs = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout.split("\n")
    ours = [" ".join(map(str, (name, ctypes.sizeof(struct), *(getattr(struct, field).offset for field, *_ in struct._fields_))))
            for name, struct in _c.STRUCTS.items()]
    assert theirs[:-1] == ours


def test_no_field_of_the_header_is_left_out():
    """One more in a gap changes neither size nor offsets."""
    from hbm import _c

    text = re.sub(r"/\*.*?\*/", "", "".join((ROOT / name).read_text() for name in ("client/hbm.h", "proto/vocab.h")), flags=re.S)
    for name, struct in _c.STRUCTS.items():
        body = re.search(r"struct %s \{(.*?)\};" % name, text, re.S).group(1)
        theirs = re.findall(r"(\w+)(?:\[[^\]]*\])?\s*(?=[,;])", body)
        assert ["as" if field == "as_name" else field for field, *_ in struct._fields_] == theirs, name


def test_every_call_of_the_header_is_bound_or_not_needed():
    from hbm import _c

    header = re.sub(r"/\*.*?\*/", "", (ROOT / "client" / "hbm.h").read_text(), flags=re.S)
    declared = set(re.findall(r"\b(hbm_\w+)\(", header))
    assert declared - set(_c._CALLS) - set(_c._PLAIN) == set()


def test_a_library_that_is_not_there_is_named():
    ended = subprocess.run([sys.executable, "-c", "import hbm"], text=True, stderr=subprocess.PIPE, check=False,
                           env={**os.environ, "PYTHONPATH": str(PACKAGE), "HBM_LIBRARY": "/nowhere/libhbm.so"})
    assert ended.returncode == 1 and "HBM_LIBRARY" in ended.stderr.splitlines()[-1]


# ---- Sharing ----

def test_a_write_in_one_process_is_seen_in_another(shared, session):
    buffer = session.alloc((2, 3), "F32", name="w")
    buffer.numpy()[:] = 1
    ended = in_a_process(shared, """
        b = s.attach("w", write=True)
        assert b.numpy().sum() == 6, b.numpy()
        b.numpy()[1, 2] = 5
    """)
    assert ended.returncode == 0, ended.stderr
    assert buffer.numpy().tolist() == [[1, 1, 1], [1, 1, 5]]


def test_arrays_share_the_memory_and_say_what_they_are(session):
    buffer = session.alloc((4, 8), "I16", name="w")
    array, imported, view = buffer.numpy(), numpy.from_dlpack(buffer), buffer.memoryview()
    array[3, 7] = -2
    assert imported[3, 7] == -2 and numpy.asarray(buffer)[3, 7] == -2 and view[-2:] == b"\xfe\xff"
    assert (buffer.shape, buffer.dtype, buffer.nbytes, buffer.name) == ((4, 8), "I16", 64, "w")
    assert array.shape == (4, 8) and array.dtype == numpy.int16 and len(buffer) == 4
    assert buffer.__dlpack_device__() == (1, 0) and not hasattr(buffer, "__cuda_array_interface__")


def test_a_read_only_buffer_gives_read_only_arrays(shared, session):
    put(shared, "w", bytes(range(100)))
    buffer = session.attach("w")
    assert buffer.readonly and not buffer.numpy().flags.writeable and buffer.memoryview().readonly
    with pytest.raises(ValueError):
        buffer.numpy()[0] = 1


@pytest.mark.parametrize("dtype, numpy_type", [("BOOL", "bool"), ("U8", "uint8"), ("U16", "uint16"), ("I64", "int64"), ("F16", "float16"),
                                               ("F64", "float64"), ("C64", "complex64")])
def test_element_types_are_numpys(session, dtype, numpy_type):
    buffer = session.alloc((3,), dtype)
    assert buffer.numpy().dtype == numpy.dtype(numpy_type)
    buffer.numpy()[:] = [1, 0, 1]
    try:
        assert numpy.from_dlpack(buffer).tolist() == buffer.numpy().tolist()
    except RuntimeError as error:  # of the consumer, unharmed by the capsule that ends meanwhile
        assert dtype == "BOOL" and "Unsupported dtype" in str(error)


def test_types_that_numpy_lacks_are_refused_with_the_way_out(session):
    for dtype in ("BF16", "F8_E4M3"):
        buffer = session.alloc((4,), dtype)
        try:
            import ml_dtypes  # noqa: F401
        except ImportError:
            with pytest.raises(TypeError, match="ml_dtypes"):
                buffer.numpy()
        assert len(buffer.memoryview()) == buffer.nbytes
    with pytest.raises(BufferError, match="DLPack"):
        session.alloc((4,), "F8_E5M2").__dlpack__()
    with pytest.raises(TypeError, match="smaller than a byte"):
        session.alloc((4,), "F4").numpy()


def test_what_has_no_elements_is_refused_alone_and_fine_in_a_model(session):
    with pytest.raises(ValueError, match="0 bytes"):
        session.alloc((0, 5), "F32")
    assert hbm.publish("m", {"empty": numpy.zeros((0, 5), "f4")}, session=session)["empty"].numpy().shape == (0, 5)
    with pytest.raises(ValueError, match="dimension"):
        session.alloc((), "F32")


# ---- Lifetimes ----

def test_a_lease_ends_with_the_last_array_of_it(shared, session):
    put(shared, "w", b"data")
    arrays = {"numpy": lambda b: b.numpy(), "dlpack": numpy.from_dlpack, "memoryview": lambda b: b.memoryview(), "asarray": numpy.asarray,
              "a slice": lambda b: b.numpy()[1:2]}
    for name, make in arrays.items():
        array = make(session.attach("w"))
        gc.collect()
        assert leases(shared, "w"), name
        assert bytes(array)[-1:] in (b"a", b"\x61"), name
        del array
        gc.collect()
        shared.wait_for(lambda: not leases(shared, "w"))


def test_arrays_outlive_their_session_object(shared):
    put(shared, "w", b"data")
    with hbm.connect(shared.runtime_dir) as session:
        array = session.attach("w").numpy()
    gc.collect()
    assert bytes(array) == b"data" and shared.rpc("hbm.sessions")
    with pytest.raises(ValueError, match="closed"):
        session.attach("w")
    del array
    gc.collect()
    shared.wait_for(lambda: not shared.rpc("hbm.sessions"))
    sweep(shared)


def test_a_capsule_that_nobody_takes_ends_with_itself(shared, session):
    buffer = session.alloc((4,), "F32", name="w")
    capsule = buffer.__dlpack__()
    versioned = buffer.__dlpack__(max_version=(1, 1))
    assert "dltensor" in repr(capsule) and "dltensor_versioned" in repr(versioned)
    buffer.detach()
    assert leases(shared, "w")
    del capsule, versioned
    gc.collect()
    shared.wait_for(lambda: not shared.rpc("hbm.ls"))
    with pytest.raises(ValueError, match="detached"):
        buffer.numpy()


def test_tensors_that_live_to_the_end_of_the_interpreter_do_not_crash_it(shared, session):
    put(shared, "w", b"data")
    ended = in_a_process(shared, """
        keep = numpy.from_dlpack(s.attach("w")), s.attach("w").numpy(), s.attach("w").__dlpack__()
        sys.modules["keep"] = keep
    """)
    assert (ended.returncode, ended.stderr) == (0, "")
    shared.wait_for(lambda: not leases(shared, "w"))


def test_a_forked_child_leaves_the_parents_session_alone(shared, session):
    buffer = session.alloc((4,), "U8", name="w")
    child = os.fork()
    if not child:
        try:
            session.devices()
        except hbm.Error as error:
            os._exit(0 if error.name == "FORKED" else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    buffer.numpy()[:] = 3
    assert get(shared, "w") == b"\3\3\3\3"


# ---- Models ----

def test_a_model_is_attached_by_one_request_and_keeps_its_names(shared, session):
    load_layers(shared, "m", 3)
    model = session.model("m")
    assert sorted(model) == sorted(name.split("/")[1] for name in (row["name"] for row in shared.rpc("hbm.ls")))
    assert len(model.groups) == 3 and model.metadata.startswith(b"hbm kept files 1")
    tensors = model.tensors("numpy")
    del model
    gc.collect()
    assert [row["leases"] for row in shared.rpc("hbm.models")] != [[]]
    assert all(not array.flags.writeable for array in tensors.values())
    with pytest.raises(KeyError):
        session.model("m")["no such tensor"]


def test_published_arrays_come_back_equal_and_are_there_for_others(shared, session):
    arrays = {"layers.0.w": numpy.arange(12, dtype="f4").reshape(3, 4), "layers.1.w": numpy.arange(5, dtype="i8"),
              "embedding": numpy.zeros((0, 3), "f2"), "strided": numpy.arange(20, dtype="u2").reshape(4, 5).T}
    model = hbm.publish("m", arrays, session=session)
    assert model.groups == ["layers.0", "layers.1", "_"]
    for name, array in arrays.items():
        assert numpy.array_equal(model[name].numpy(), array), name
    again = hbm.publish("m", {"layers.0.w": numpy.ones(1)}, session=session)
    assert set(again) == set(arrays)


def test_a_build_that_fails_leaves_nothing(shared, session):
    with pytest.raises(RuntimeError), session.build("m", {"w": ("F32", (4,))}) as build:
        build["w"].numpy()[:] = 1
        raise RuntimeError
    assert shared.rpc("hbm.models") == []
    with session.build("m", {"w": ("F32", (4,))}) as build:
        build["w"].numpy()[:] = 2
    assert session.model("m")["w"].numpy().tolist() == [2, 2, 2, 2]


def test_single_flight_from_threads(shared, session):
    built, seen = [], []

    def ask():
        answer = session.build("m", {"w": ("U8", (1,))})
        if isinstance(answer, hbm.Build):
            built.append(answer)
            with answer:
                answer["w"].numpy()[:] = 7
            answer = session.model("m")
        seen.append(int(answer["w"].numpy()[0]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(built) == 1 and seen == [7] * 4


def test_groups_go_away_and_come_back_at_the_same_address(shared, session):
    load_layers(shared, "m", 3)
    model = session.model("m")
    before = {name: array.tobytes() for name, array in model.tensors("numpy").items()}
    addresses = {name: model[name].address for name in model}
    model.order(depth=1)
    model.unlock()
    session.offload("model:m", "disk", force=True).wait(60)
    assert used(shared) == 0
    for group in model.groups:
        model.lock(group)
    assert {name: model[name].address for name in model} == addresses
    assert {name: array.tobytes() for name, array in model.tensors("numpy").items()} == before


def test_a_stream_has_its_memory_when_its_work_begins(shared, session):
    """On the host device there is no stream, and the call returns when the bytes are there."""
    load_layers(shared, "m", 3)
    model = session.model("m")
    before = {name: array.tobytes() for name, array in model.tensors("numpy").items()}
    model.unlock()
    session.offload("model:m", "host", force=True).wait(60)
    model.lock_on("layers.1", 0)
    model.lock_on(None, 0, timeout=20)
    assert {name: array.tobytes() for name, array in model.tensors("numpy").items()} == before
    model.unlock(None)
    model.unlock("layers.1")
    put(shared, "w", b"some")
    buffer = session.attach("w")
    buffer.unlock()
    session.offload("w", "disk").wait(60)
    buffer.lock_on(0)
    assert bytes(buffer.numpy()) == b"some"
    with pytest.raises(hbm.Invalid):
        buffer.lock_on(0, timeout=None)


def test_a_checkpoint_is_loaded_once_and_saved_as_it_was(shared, session, tmp_path):
    rows = {"layers.0.w": ("F32", (2, 2), bytes(range(16))), "e": ("U8", (0,), b""), "layers.1.w": ("U8", (3,), b"abc")}
    path = safetensors(tmp_path / "tiny.safetensors", rows, {"format": "pt"})
    from hbm import safetensors as checkpoints

    arrays = checkpoints.load_file(path, framework="numpy", session=session)
    again = checkpoints.load_file(str(path), framework="numpy", session=session)
    assert {name: array.tobytes() for name, array in arrays.items()} == {name: data for name, (_, _, data) in rows.items()}
    assert len(shared.rpc("hbm.models")) == 1 and again.keys() == arrays.keys()
    name = shared.rpc("hbm.models")[0]["name"]
    ctl_done(shared, "save", name, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == pathlib.Path(path).read_bytes()
    assert checkpoints.name_for(path) == name and name.startswith("tiny.")


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, (8).to_bytes(8, "little") + b"not json", (2).to_bytes(8, "little") + b"[]",
                                     b"GGUF" + bytes(64),
                                     (64).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'.ljust(64)],
                         ids=["empty", "short", "huge", "no-json", "a-list", "gguf", "cut-off"])
def test_what_is_no_checkpoint_is_refused_and_leaves_nothing(shared, session, tmp_path, content):
    from hbm import safetensors as checkpoints

    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="x.safetensors"):
        checkpoints.load_file(tmp_path / "x.safetensors", framework="numpy", session=session)
    assert shared.rpc("hbm.models") == []


def test_an_array_goes_on_in_host_memory_and_back(shared, session):
    put(shared, "w", bytes(range(200)))
    buffer = session.attach("w")
    array = buffer.numpy()
    buffer.unlock()
    session.offload("w", live=True).wait(60)
    buffer.lock()
    assert buffer.tier == "host" and used(shared) == 0 and bytes(array) == bytes(range(200))
    buffer.unlock()
    session.restore("w").wait(60)
    buffer.lock()
    assert buffer.tier == "device" and bytes(array) == bytes(range(200))


# ---- Operations and errors ----

def test_a_receipt_comes_with_the_wait(session):
    buffer = session.alloc((64, 64), "F32", name="w", keep=True)
    buffer.numpy()[:] = numpy.random.default_rng(1).standard_normal((64, 64))
    receipt = session.compress("w", "int8", per="channel", copy=True).wait(60)
    assert receipt.elements == 4096 and 35 < receipt.sqnr_db < 60 and receipt.bytes_after < receipt.bytes_before
    copy = session.attach("w@int8.channel0")
    assert copy.encoding == "int8 per channel 0" and copy.dtype == "F32" and copy.numpy().dtype == numpy.int8
    scale = session.attach("w@int8.channel0.scale")
    decoded = copy.numpy() * scale.numpy().reshape(-1, 1)
    assert abs(decoded - buffer.numpy()).max() <= receipt.max_abs_error * 1.0001


def test_batches_are_observed_and_give_the_range_of_a_later_compression(session):
    activations = session.alloc((64, 64), "F32", name="acts", keep=True)
    weights = session.alloc((64, 64), "F32", name="w", keep=True)
    with pytest.raises(hbm.NotFound):
        session.observed("acts")
    for most in (2, 6):
        activations.numpy()[:] = numpy.linspace(-1, most, 4096).reshape(64, 64)
        session.observe("acts", momentum=0.5).wait(60)
    seen = session.observed("acts")
    assert seen == hbm.Observation(2, 8192, 0, (-1, 6), (-1, 4), (-1, 6), False)
    weights.numpy()[:] = numpy.linspace(-1, 1, 4096).reshape(64, 64)
    ways = (("observed", 6), ("observed:average", 4), ("observed:percentile:100", 6), ("range:3", 3))
    for copies, (calibrate, most) in enumerate(ways):
        observed = "acts" if calibrate.startswith("observed") else None
        receipt = session.compress("w", "int8", copy=True, as_name=f"copy.{copies}", calibrate=calibrate, observed=observed).wait(60)
        scale = session.attach(f"copy.{copies}.scale").numpy()[0]
        assert abs(scale * 127 - most) < 1e-5 and receipt.clipped_fraction == 0, calibrate
    for refused in (dict(calibrate="observed"), dict(calibrate="best"), dict(observed="acts"), dict(calibrate="mse", per="channel")):
        with pytest.raises(hbm.Invalid):
            session.compress("w", "int8", **refused).wait(60)
    with pytest.raises(hbm.Invalid):
        session.observe("acts", momentum=1)
    session.observe("acts", forget=True).wait(60)
    with pytest.raises(hbm.NotFound):
        session.observed("acts")


def test_parked_memory_is_smaller_away_and_itself_on_the_device(shared, session):
    buffer = session.alloc((64, 1024), "F32", name="w", keep=True)
    buffer.numpy()[:] = numpy.arange(65536).reshape(64, 1024) % 512
    session.compress("w", "fp16", park=True).wait(60)
    assert buffer.encoding == "raw" and buffer.numpy()[3, 5] == 5 and used(shared) >= 262144
    buffer.unlock()
    session.offload("w", "host").wait(60)
    assert used(shared, "host") < 200000
    buffer.lock()
    assert (buffer.numpy() == numpy.arange(65536).reshape(64, 1024) % 512).all()


def test_an_operation_can_be_awaited(shared, session):
    import asyncio

    put(shared, "w", bytes(1 << 20))

    async def there_and_back():
        await session.offload("w", "host")
        assert row_of(shared, "w")["tier"] == "host"
        await session.restore("w")

    asyncio.run(there_and_back())
    assert row_of(shared, "w")["tier"] == "device"


def test_errors_are_exceptions_that_say_what_to_do(shared, session):
    for ask, kinds in ((lambda: session.attach("nothing"), (hbm.NotFound, KeyError)),
                       (lambda: session.attach("w/../x"), (hbm.Error,)),
                       (lambda: session.alloc((1 << 62,), "F64"), (ValueError,)),
                       (lambda: session.offload("nothing").wait(), (hbm.NotFound,)),
                       (lambda: session.attach("nul\0byte"), (ValueError,)),
                       (lambda: session.alloc((1,) * 9), (ValueError,)),
                       (lambda: session.alloc((1,), "F33"), (ValueError,)),
                       (lambda: session.compress("w", "zip"), (ValueError,)),
                       (lambda: session.offload("w", "moon"), (ValueError,)),
                       (lambda: hbm.connect("/nowhere", reconnect=0), (hbm.NoDaemon, ConnectionError))):
        with pytest.raises(kinds[-1]) as raised:
            ask()
        assert isinstance(raised.value, kinds) and len(str(raised.value)) > 10
    with pytest.raises(hbm.NotFound) as raised:
        session.attach("nothing")
    assert raised.value.name == "NOT_FOUND" and raised.value.code < 0 and "hbmctl ls" in str(raised.value)


def test_a_daemon_that_comes_back_is_gone_on_with(make_daemon):
    daemon = make_daemon(supervise=True).start()
    with hbm.connect(daemon.runtime_dir) as session:
        buffer = session.alloc((4,), "U8", name="w")
        array = buffer.numpy()
        array[:] = 9
        daemon.kill9()
        daemon.wait_ready()
        assert session.attach("w").numpy().tolist() == [9] * 4 and array.tolist() == [9] * 4
        del buffer, array
    gc.collect()
    sweep(daemon)
