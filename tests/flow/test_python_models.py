"""hbm.load_model: a model as arrays, by one name, in whatever framework is here; loaded once, by whoever asks first."""
import gc
import importlib.util
import subprocess
import sys
import threading

import numpy
import pytest

from helpers import load_layers, module_daemon, safetensors, shared
from test_python import environment, hbm, session

ADDRESS = {"numpy": lambda array: array.ctypes.data, "torch": lambda array: array.data_ptr(), "jax": lambda array: array.unsafe_buffer_pointer()}
FRAMEWORKS = [name for name in ADDRESS if importlib.util.find_spec(name)]
WEIGHTS = numpy.random.default_rng(1).standard_normal((6, 200)).astype("f4")


def publish_and(session, codec, **how):
    """A model m with a weight w encoded so, and a norm that is not."""
    hbm.publish("m", {"layers.0.w": WEIGHTS, "norm": numpy.ones(200, "f4")}, session=session)
    gc.collect()
    session.compress("m/layers.0.w", codec, **how).wait(60)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_is_a_dictionary_of_arrays_in_its_own_memory(shared, session, framework):
    load_layers(shared, "m", 2)
    model, tensors = session.model("m"), hbm.load_model("m", framework, session=session)
    assert list(tensors) == list(model)
    for name, tensor in tensors.items():
        assert type(tensor).__module__.startswith(framework) and ADDRESS[framework](tensor) == model[name].address
        assert tuple(tensor.shape) == model[name].shape


def test_what_is_installed_is_taken_where_nothing_is_asked_for(shared, session):
    load_layers(shared, "m", 1)
    first = next(name for name in ("torch", "jax", "numpy") if name in FRAMEWORKS)
    assert all(type(tensor).__module__.startswith(first) for tensor in hbm.load_model("m", session=session).values())
    with pytest.raises(ValueError, match="tensorflow.*numpy"):
        hbm.load_model("m", "tensorflow", session=session)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("codec, how, stored, error", [("int8", {"per": "tensor"}, "int8", 0.02), ("int8", {"per": "channel"}, "int8", 0.02),
                                                       ("int8", {"per": "channel", "axis": 1}, "int8", 0.02),
                                                       ("int8-asym", {"per": "group", "group": 64}, "int8", 0.02),
                                                       ("int8-split", {"per": "channel", "axis": 1, "group": 3}, "int8", 0.02),
                                                       ("int4", {"per": "group", "group": 64}, "uint8", 0.4),
                                                       ("fp16-scaled", {}, "float16", 0.01)])
def test_an_encoded_tensor_comes_with_its_scales_and_decodes(shared, session, framework, codec, how, stored, error):
    publish_and(session, codec, **how)
    tensors = hbm.load_model("m", framework, session=session)
    assert list(tensors) == ["layers.0.w", "norm"]
    found = tensors["layers.0.w"]
    assert isinstance(found, hbm.Quantised) and found.encoding.startswith(codec) and (found.zero is not None) == (codec == "int8-asym")
    assert str(found.values.dtype).endswith(stored) and found.shape == WEIGHTS.shape and found.dtype == "F32"
    decoded = numpy.asarray(found.decoded())
    assert decoded.dtype == numpy.float32 and decoded.shape == WEIGHTS.shape
    assert abs(decoded - WEIGHTS).max() < error
    exact = session.decompress("m/layers.0.w")
    del tensors, found
    gc.collect()
    exact.wait(60)
    assert numpy.array_equal(hbm.load_model("m", "numpy", session=session)["layers.0.w"], decoded)


def test_what_has_no_scale_is_an_array_of_what_is_stored(session):
    publish_and(session, "fp16")
    assert hbm.load_model("m", "numpy", session=session)["layers.0.w"].dtype == numpy.float16


def test_a_wrong_name_is_answered_with_the_likely_one(shared, session):
    load_layers(shared, "minilm", 2)
    with pytest.raises(hbm.NotFound, match='model minilmm;.*did you mean "minilm"'):
        hbm.load_model("minilmm", session=session)
    with pytest.raises(hbm.NotFound) as raised:
        hbm.load_model("quite another", session=session)
    assert "did you mean" not in str(raised.value) and raised.value.code < 0
    model = session.model("minilm")
    name = next(iter(model))
    with pytest.raises(KeyError, match=f'did you mean "{name}"'):
        model[name[:-1]]
    assert name in model and name[:-1] not in model and model.get("nothing") is None


def test_tensors_go_on_after_their_session_was_closed_and_new_ones_are_refused(shared):
    load_layers(shared, "m", 1)
    with hbm.connect(shared.runtime_dir) as session:
        tensors = hbm.load_model("m", "numpy", session=session)
    copies = {name: array.copy() for name, array in tensors.items()}
    assert all(numpy.array_equal(copies[name], array) for name, array in tensors.items())
    with pytest.raises(ValueError, match="the session is closed"):
        hbm.load_model("m", "numpy", session=session)


def test_threads_and_processes_that_ask_for_a_file_at_once_load_it_once(shared, session, tmp_path):
    path = safetensors(tmp_path / "w.safetensors", {"layers.0.w": ("U8", (1 << 20,), bytes(range(256)) * 4096)}, {})
    code = "import sys, hbm; print(bytes(hbm.load_model('m', 'numpy', path=sys.argv[1])['layers.0.w'][:3]))"
    others = [subprocess.Popen([sys.executable, "-c", code, path], env=environment(shared), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(hbm.load_model("m", "numpy", path=path, session=session)["layers.0.w"]))
               for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [other.communicate(timeout=60)[0].strip() for other in others] == ["b'\\x00\\x01\\x02'"] * 2
    assert len({array.ctypes.data for array in seen}) == 1 and len(seen) == 3
    assert [row["name"] for row in shared.rpc("hbm.models")] == ["m"]
