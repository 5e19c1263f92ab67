"""vLLM loads its weights from the broker: `vllm serve MODEL_FOLDER --load-format hbm`, where hbm is installed by its wheel.

A restarted or second engine has its weights copied from the memory of the GPU, and not from disk; so has one whose weights are
reloaded. They are copies, in vLLM's own layout (it fuses and shards them): within `hbm.torch.MemPool` those lie in the broker as
well. --model-loader-extra-config '{"name": "llama"}' takes a model that is published already by that name; without, MODEL_FOLDER's own
safetensors files are published by the first who asks.

Not run in an engine, which wants a GPU that vLLM's package can be brought to. What has been run is vLLM 0.33 as far as it goes
without one: it takes this as a plug-in, its registry makes the loader by its configuration, and the loader hands on every tensor.
Where vLLM is not installed the tests do the same with a stand-in of that interface.
"""
from __future__ import annotations

import os

LOAD_FORMAT = "hbm"


def register() -> None:
    """vLLM's entry point for plug-ins calls it in each of its processes."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    from . import load_model, safetensors

    @register_model_loader(LOAD_FORMAT)
    class HbmModelLoader(BaseModelLoader):
        def __init__(self, load_config) -> None:
            super().__init__(load_config)
            options = load_config.model_loader_extra_config or {}
            unknown = ", ".join(set(options) - {"name"})
            if unknown:
                raise ValueError(f"--model-loader-extra-config has {unknown}, which --load-format {LOAD_FORMAT} does not know: it takes "
                                 '"name", of a model that is published')
            self._name = options.get("name")

        def download_model(self, model_config) -> None:
            self._tensors(model_config)

        def load_weights(self, model, model_config) -> None:
            model.load_weights(self.get_all_weights(model_config, model))

        def get_all_weights(self, model_config, model):
            """What vLLM reloads from, too."""
            del model
            return iter(self._tensors(model_config).items())

        def _tensors(self, model_config) -> dict:
            if self._name:
                tensors = load_model(self._name, "torch")
            elif os.path.isdir(model_config.model):
                tensors = safetensors.load_folder(model_config.model, "torch")
            else:
                raise ValueError(f"{model_config.model} is no folder here: download the model and give its folder, or name one that is "
                                 """published: --model-loader-extra-config '{"name": "..."}'""")
            encoded = [name for name, tensor in tensors.items() if isinstance(tensor, tuple)]
            if encoded:
                raise ValueError(f"{encoded[0]} is encoded in the broker, which vLLM's loaders do not read: `hbmctl decompress` it")
            return tensors
