"""Engines on the package: torch modules, Transformers' models and vLLM's loader, as far as what they need is installed here.

torch for CPUs and Transformers are no packages that can be had cheaply: where they are not, their tests are waived."""
import gc
import importlib.util
import subprocess
import sys

import numpy
import pytest

from helpers import module_daemon, safetensors, shared
from test_python import environment, hbm, session

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed: modules are not tried here")
needs_transformers = pytest.mark.skipif(not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
                                        reason="torch or transformers is not installed: their models are not tried here")


@needs_torch
def test_a_module_is_made_empty_and_shares_what_is_published(shared, session):
    import torch
    import hbm.torch

    def make():
        inner = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4))
        inner.register_buffer("table", torch.arange(4.0), persistent=False)
        return torch.nn.ModuleDict({"inner": inner})

    original = make()
    model = hbm.publish("m", {name: tensor.detach() for name, tensor in original.state_dict().items()}, session=session)
    with hbm.torch.skeleton():
        module = make()
    assert all(parameter.is_meta for parameter in module.parameters())
    assert hbm.torch.assign(module, model.tensors("torch")) == {"inner.table"}
    x = torch.ones(2, 8)
    assert torch.equal(module["inner"](x), original["inner"](x)) and torch.equal(module["inner"].table, torch.arange(4.0))
    assert module["inner"][0].weight.data_ptr() == model["inner.0.weight"].address
    assert not torch.nn.Linear(2, 2).weight.is_meta
    with pytest.raises(ValueError, match="inner.0.bias is .*another model"):
        hbm.torch.assign(module, {"inner.0.bias": torch.zeros(5)})
    with pytest.raises(TypeError, match="encoded"):
        hbm.torch.assign(module, {"inner.0.weight": hbm.Quantised(*[None] * 8)})


def tiny(kind):
    """A model, and the Auto class that loads it."""
    import torch
    import transformers

    torch.manual_seed(1)
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
        return transformers.BertModel(config), transformers.AutoModel
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
        return transformers.GPT2LMHeadModel(config), transformers.AutoModelForCausalLM
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    return transformers.LlamaForCausalLM(config), transformers.AutoModelForCausalLM


@needs_transformers
@pytest.mark.parametrize("shard", ["10GB", "8KB"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_a_transformers_model_answers_from_the_broker_as_from_its_file(shared, session, tmp_path, kind, shard):
    import torch
    import hbm.transformers

    model, auto = tiny(kind)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    tokens = torch.tensor([[1, 2, 3, 4]])
    shares = hbm.transformers.from_pretrained(auto, tmp_path, name="tiny", session=session)
    with torch.no_grad():
        assert torch.equal(shares(tokens)[0], auto.from_pretrained(tmp_path).eval()(tokens)[0])
    assert type(shares) is type(model) and not shares.training
    addresses = {buffer.address for row in shared.rpc("hbm.models") for buffer in session.model(row["name"]).values()}
    assert {parameter.data_ptr() for parameter in shares.parameters()} <= addresses
    assert len(shared.rpc("hbm.models")) == len(list(tmp_path.glob("*.safetensors"))) and (shard == "10GB") == (len(shared.rpc("hbm.models")) == 1)
    again = hbm.transformers.from_pretrained(type(model), tmp_path, name="tiny", session=session)
    assert again.state_dict().keys() == shares.state_dict().keys()


@needs_transformers
def test_a_checkpoint_of_another_model_is_refused_by_what_it_lacks(shared, session, tmp_path):
    import transformers
    import hbm.transformers

    tiny("bert")[0].save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no classifier.weight, classifier.bias for BertForSequenceClassification"):
        hbm.transformers.from_pretrained(transformers.AutoModelForSequenceClassification, tmp_path, session=session)
    base = hbm.transformers.from_pretrained(transformers.BertModel, tmp_path, session=session)
    assert base.config.hidden_size == 16


VLLM = """
import importlib.util, sys, types
if not importlib.util.find_spec("vllm"):  # what the loader takes of it
    loaders = {}
    class BaseModelLoader:
        def __init__(self, load_config):
            self.load_config = load_config
    def module(name, **has):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(has)
    module("vllm")
    module("vllm.config")
    module("vllm.config.load", LoadConfig=types.SimpleNamespace)
    module("vllm.model_executor")
    module("vllm.model_executor.model_loader", register_model_loader=lambda name: lambda loader: loaders.setdefault(name, loader),
           get_model_loader=lambda config: loaders[config.load_format](config))
    module("vllm.model_executor.model_loader.base_loader", BaseModelLoader=BaseModelLoader)
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader
import hbm.buffer, hbm.vllm
if not importlib.util.find_spec("torch"):
    hbm.buffer.to_torch = hbm.buffer.Buffer.numpy  # what the loader hands on is not its business
class Model:
    def load_weights(self, weights):
        self.seen = {name: bytes(memoryview(getattr(tensor, "numpy", lambda: tensor)())) for name, tensor in weights}
hbm.vllm.register()
extra, model, config = eval(sys.argv[1]), Model(), types.SimpleNamespace(model=sys.argv[2])
loader = get_model_loader(LoadConfig(load_format="hbm", model_loader_extra_config=extra))
loader.download_model(config)
loader.load_weights(model, config)
seen = model.seen
model.load_weights(loader.get_all_weights(config, model))
print(sorted(seen), seen["layers.0.w"] == bytes(range(16)), seen == model.seen)
"""


def as_vllm(shared, extra, folder):
    return subprocess.run([sys.executable, "-c", VLLM, str(extra), folder], env=environment(shared), text=True, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


@pytest.mark.parametrize("extra", [{"name": "m"}, {}])
def test_vllms_loader_hands_on_every_tensor(shared, session, tmp_path, extra):
    """By vLLM's own registry, where that is installed."""
    tensors = {"layers.0.w": ("U8", (16,), bytes(range(16))), "norm": ("F32", (2,), bytes(8))}
    safetensors(tmp_path / "model.safetensors", tensors, {})
    if extra:
        hbm.publish("m", {"layers.0.w": numpy.arange(16, dtype="u1"), "norm": numpy.zeros(2, "f4")}, session=session)
        gc.collect()
    ended = as_vllm(shared, extra, tmp_path)
    assert (ended.returncode, ended.stdout.strip().splitlines()[-1:]) == (0, ["['layers.0.w', 'norm'] True True"]), ended.stderr


@pytest.mark.parametrize("extra, model, why", [({"nmae": "m"}, "m", "has nmae, which --load-format hbm does not know: it takes \"name\""),
                                               ({"name": "none"}, "m", "model none"),
                                               ({}, "org/model", "org/model is no folder here: download the model")])
def test_what_vllms_loader_cannot_load_it_refuses_with_what_to_do(shared, extra, model, why):
    ended = as_vllm(shared, extra, model)
    assert ended.returncode == 1 and why in ended.stderr.splitlines()[-1], ended.stderr
