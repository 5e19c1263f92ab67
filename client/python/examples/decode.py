"""A decode loop over a model of which only a window of layers is on the device: the next ones are on their way while one computes.

    python3 decode.py [LAYERS [TOKENS]]         (`hbmctl rm decode` afterwards)
"""
import sys

import numpy

import hbm

WIDTH, DEPTH = 512, 2


def publish(layers):
    random = numpy.random.default_rng(1)
    hbm.publish("decode", {f"layers.{i}.weight": random.standard_normal((WIDTH, WIDTH), "f4") / WIDTH**0.5 for i in range(layers)})


def streams(weights):
    """What a layer is unlocked behind: the work queued so far. In host memory there is none."""
    first = next(iter(weights.values()))
    if type(first).__module__ != "torch" or not first.is_cuda:
        return ()
    import torch

    return (torch.cuda.current_stream(),)


def main(layers, tokens):
    publish(layers)
    with hbm.connect() as session:
        model = session.model("decode")
        weights = model.tensors()        # addresses stay, wherever the layers are
        model.unlock()
        model.order(depth=DEPTH)         # with each layer locked the next two come back
        model.window(force=True)         # and what has been used leaves
        x = next(iter(weights.values()))[:1] * 0 + 1
        for _ in range(tokens):
            for name, weight in weights.items():
                layer = hbm.layer_of(name)
                model.lock(layer)
                x = x @ weight
                model.unlock(layer, *streams(weights))
            x = x / abs(x).max()
        print(f"{tokens} tokens through {layers} layers, of which {1 + DEPTH} are to be on the device: {float(abs(x).sum()):.4f}")
        model.window(None)
        model.lock()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, int(sys.argv[2]) if len(sys.argv) > 2 else 4)
