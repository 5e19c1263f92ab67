"""Transformers' models on the broker's memory: made empty, and given the tensors of their checkpoint as they lie there.

    model = hbm.transformers.from_pretrained(transformers.AutoModelForCausalLM, "/models/llama")

The first process that asks has the checkpoint read from disk once; all others, and the same one after its restart, map what is
there. It takes checkpoints that name their tensors as the model does, as save_pretrained() writes them; where Transformers
rearranges a checkpoint as it loads it, what is missing is named. Run with Transformers 4.40 and torch 1.13, and with 5.24 and 2.15,
on a CPU, with small models of BERT's, GPT-2's and Llama's kinds.
"""
from __future__ import annotations

import os

import transformers

from . import safetensors, torch
from .session import Session


def from_pretrained(cls, path, *, name: str | None = None, session: Session | None = None, **options):
    """As cls.from_pretrained(path) of a folder, for models and Auto classes; options are the configuration's. name: of the model in
    the broker (None: made of the file, another when that has changed). In evaluation mode, and its parameters are read-only."""
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, **options)
    with torch.skeleton():
        model = cls.from_config(config) if hasattr(cls, "from_config") else cls._from_config(config)
    torch.assign(model, _renamed(model, safetensors.load_folder(path, "torch", name=name, session=session)))
    model.tie_weights()
    missing = [key for key, tensor in model.state_dict().items() if tensor.is_meta]
    if missing:
        raise ValueError(f"the checkpoint in {path} has no {', '.join(missing[:5])}{' ...' if missing[5:] else ''} for "
                         f"{type(model).__name__}: it is another model's, or one that Transformers rearranges; load that by its "
                         "own from_pretrained()")
    if model.can_generate() and os.path.exists(os.path.join(path, "generation_config.json")):
        model.generation_config = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
    return model.eval()


def _renamed(model, tensors: dict) -> dict:
    """A model with a head has its base under a prefix: a checkpoint of the one loads into the other."""
    prefix = f"{model.base_model_prefix}."
    inner = {prefix + key: tensor for key, tensor in tensors.items()}
    outer = {key[len(prefix):]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    return {**outer, **inner, **tensors}
