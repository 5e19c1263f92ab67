"""torch over the Python package, on a GPU: the same memory in two processes, and a lease as long as its tensors."""
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from conftest import ROOT
from helpers import gpu_only, load_layers, module_daemon, shared, sweep


@pytest.fixture(scope="module")
def torch_python():
    """An interpreter that has torch, which need not be the one that has pytest."""
    for each in (sys.executable, "python3", "/usr/bin/python3"):
        found = shutil.which(each)
        if found and subprocess.run([found, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return found
    raise AssertionError("no python3 here has torch; install it, as these tests are about it")


@pytest.fixture
def run(shared, torch_python):
    def run(code):
        start = "import gc, sys, torch, hbm\nsession = hbm.connect()\n"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python"), "HBM_RUNTIME_DIR": str(shared.runtime_dir)}
        ended = subprocess.run([torch_python, "-c", start + textwrap.dedent(code)], env=environment, text=True, timeout=120,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@gpu_only
def test_a_write_by_torch_is_seen_by_torch_in_another_process(shared, run):
    run("""
        buffer = session.alloc((1024, 1024), "F32", name="w", keep=True)
        tensor = hbm.to_torch(buffer)
        assert tensor.is_cuda and tensor.data_ptr() == buffer.address and tensor.shape == (1024, 1024)
        tensor.copy_(torch.arange(1 << 20, device=tensor.device).reshape(1024, 1024))
        torch.cuda.synchronize()
    """)
    run("""
        tensor = torch.from_dlpack(session.attach("w"))
        assert tensor.dtype == torch.float32 and torch.equal(tensor.cpu().flatten(), torch.arange(1 << 20).float())
    """)
    sweep(shared)


@gpu_only
def test_a_lease_is_as_long_as_its_tensors(shared, run):
    load_layers(shared, "m", 2)
    run("""
        weights = session.model("m").tensors("torch")
        session.close()
        gc.collect()
        sys.stdout.flush()
        again = hbm.connect()
        assert all(tensor.cpu().numel() == tensor.numel() for tensor in weights.values())
        name = next(iter(weights))
        try:
            again.offload("model:m", "host", force=True).wait(30)
        except hbm.Busy as error:
            assert "did not let go" in str(error)
        else:
            raise AssertionError("it moved while tensors of it were there")
        del weights
        gc.collect()
        again.offload("model:m", "host", force=True).wait(30)
    """)
    shared.wait_for(lambda: not [row for row in shared.rpc("hbm.models") if row["leases"]])
    sweep(shared)


@gpu_only
def test_element_types_are_torchs(run):
    run("""
        for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16), ("I64", torch.int64), ("BOOL", torch.bool), ("F8_E4M3", torch.float8_e4m3fn)):
            tensor = hbm.to_torch(session.alloc((3, 5), name))
            assert tensor.dtype == dtype and tensor.shape == (3, 5) and not tensor.float().any(), name
    """)


@gpu_only
def test_a_model_that_went_away_is_back_at_the_same_address_with_its_values(shared, run):
    load_layers(shared, "m", 3)
    run("""
        model = session.model("m")
        tensors = model.tensors("torch")
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        torch.cuda.synchronize()
        model.unlock(None, torch.cuda.current_stream())
        session.offload("model:m", "host", force=True).wait(60)
        model.lock()
        assert all(torch.equal(tensors[name], before[name]) for name in tensors)
        assert all(tensors[name].data_ptr() == model[name].address for name in tensors)
    """)
    sweep(shared)


@gpu_only
def test_a_loaded_model_has_its_encoded_tensors_with_their_scales(shared, run):
    run("""
        generator = torch.Generator().manual_seed(1)
        weights = {"w": torch.randn(64, 256, generator=generator).cuda(), "v": torch.randn(64, 256, generator=generator).cuda(), "n": torch.ones(256).cuda()}
        hbm.publish("m", weights, session=session)
        gc.collect()
        session.compress("m/w", "int8", per="channel").wait(60)
        session.compress("m/v", "int4", per="group", group=128).wait(60)
        tensors = hbm.load_model("m", session=session)
        assert list(tensors) == ["w", "v", "n"] and torch.equal(tensors["n"], weights["n"])
        for name, dtype, error in (("w", torch.int8, 0.02), ("v", torch.uint8, 0.4)):
            found = tensors[name]
            assert found.values.is_cuda and found.values.dtype == dtype and found.scale.is_cuda
            assert (found.decoded() - weights[name]).abs().max() < error
    """)
    sweep(shared)


@gpu_only
def test_what_torch_allocates_in_a_pool_lies_in_the_broker_and_ends_with_its_tensors(shared, run):
    run("""
        import hbm.rpc, hbm.torch, time
        rows = lambda: [row for row in hbm.rpc.call(None, "hbm.ls", {}, 20) if row["group"] == "engine"]
        before = torch.ones(1 << 20, device="cuda")
        torch.set_grad_enabled(False)  # or what y was made by would hold the parameters
        with hbm.torch.MemPool("engine", session=session) as pool:
            layers = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
        outside = torch.ones(64 << 20, device="cuda")
        held = sum(row["size"] for row in rows())
        assert 4 * 2048 * 2048 * 4 <= held < 2 * 4 * 2048 * 2048 * 4, rows()
        x = torch.randn(8, 2048, device="cuda")
        y, addresses = layers(x), [p.data_ptr() for p in layers.parameters()]
        torch.cuda.synchronize()
        pool.unlock(torch.cuda.current_stream())
        session.offload("group:engine", "host", force=True).wait(60)
        assert {row["tier"] for row in rows()} == {"host"}
        pool.lock()
        assert {row["tier"] for row in rows()} == {"device"} and addresses == [p.data_ptr() for p in layers.parameters()]
        assert torch.equal(layers(x), y)
        del layers, pool
        gc.collect()
        torch.cuda.empty_cache()
        deadline = time.monotonic() + 30
        while rows() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert rows() == [], rows()
    """)
    sweep(shared)


@gpu_only
def test_an_allocation_that_the_broker_refuses_is_torchs_out_of_memory_with_its_reason(run):
    run("""
        import hbm.torch
        try:
            with hbm.torch.MemPool("engine", session=session):
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            assert any("hbm: " in note for note in getattr(error, "__notes__", ["hbm: "]))
        else:
            raise AssertionError("a petabyte was had")
        assert torch.ones(3, device="cuda").sum() == 3
    """)


@gpu_only
def test_a_module_made_empty_computes_from_what_is_published(shared, run):
    run("""
        import hbm.torch
        torch.manual_seed(1)
        make = lambda: torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        original = make().cuda().eval()
        model = hbm.publish("m", {name: tensor.detach() for name, tensor in original.state_dict().items()}, session=session)
        with hbm.torch.skeleton():
            module = make().eval()
        assert hbm.torch.assign(module, model.tensors("torch")) == set()
        x = torch.randn(2, 16, 256, device="cuda")
        with torch.no_grad():
            assert torch.equal(module(x), original(x))
        assert {parameter.data_ptr() for parameter in module.parameters()} == {buffer.address for buffer in model.values()}
    """)
    sweep(shared)


@gpu_only
def test_a_transformers_model_on_the_gpu_answers_from_the_broker_as_from_its_file(shared, run):
    """Where transformers is installed beside torch; else it says that it is not, and there is nothing to see."""
    print(run("""
        import importlib.util, tempfile
        if not importlib.util.find_spec("transformers"):
            print("transformers is not installed here: its models are not tried")
            sys.exit()
        import transformers, hbm.transformers
        config = transformers.BertConfig(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
        path = tempfile.mkdtemp()
        transformers.BertModel(config).save_pretrained(path)
        shares = hbm.transformers.from_pretrained(transformers.AutoModel, path, session=session)
        tokens = torch.tensor([[1, 2, 3, 4]]).cuda()
        with torch.no_grad():
            expected = transformers.AutoModel.from_pretrained(path).cuda().eval()(tokens)[0]
            assert torch.allclose(shares(tokens)[0], expected, atol=1e-5)
        assert all(parameter.is_cuda for parameter in shares.parameters())
    """))
    sweep(shared)
