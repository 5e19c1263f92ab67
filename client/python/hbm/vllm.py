"""vLLM loads its weights from the broker: `vllm serve MODEL_FOLDER --load-format hbm`, where hbm is installed by its wheel.

A restarted or second engine has its weights copied from the memory of the GPU, and not from disk. They are copies, in vLLM's own
layout (it fuses and shards them): within `hbm.torch.MemPool` those lie in the broker as well. --model-loader-extra-config
'{"name": "llama"}' takes a model that is published already by that name; without, MODEL_FOLDER's own safetensors files are
published by the first who asks.

Not run with vLLM itself, which is too large to be had where this is tested: written against the interface of its
model_executor.model_loader (register_model_loader, BaseModelLoader with download_model and load_weights), and tested against a
stand-in of that.
"""
from __future__ import annotations

LOAD_FORMAT = "hbm"


def register() -> None:
    """vLLM's entry point for plug-ins calls it in each of its processes."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    from . import load_model, safetensors

    @register_model_loader(LOAD_FORMAT)
    class HbmModelLoader(BaseModelLoader):
        def _tensors(self, model_config) -> dict:
            options = self.load_config.model_loader_extra_config or {}
            if "name" in options:
                return load_model(options["name"], "torch")
            return safetensors.load_folder(model_config.model, "torch")

        def download_model(self, model_config) -> None:
            self._tensors(model_config)

        def load_weights(self, model, model_config) -> None:
            tensors = self._tensors(model_config)
            encoded = [name for name, tensor in tensors.items() if isinstance(tensor, tuple)]
            if encoded:
                raise ValueError(f"{encoded[0]} is encoded in the broker, which vLLM's loaders do not read: `hbmctl decompress` it")
            model.load_weights(tensors.items())
