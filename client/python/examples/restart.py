"""An engine is killed and started again: its weights are where they were, and it goes on as soon as it has mapped them.

    python3 restart.py [MIB]                    (`hbmctl rm engine` afterwards)
"""
import subprocess
import sys
import time

import numpy

import hbm

LAYERS, WIDTH = 16, 512


def publish(mib):
    """A model of random layers, unless it is there."""
    rows = mib * (1 << 20) // (LAYERS * WIDTH * 4)
    random = numpy.random.default_rng(1)
    hbm.publish("engine", {f"layers.{i}.weight": random.standard_normal((rows, WIDTH), "f4") for i in range(LAYERS)})


def engine():
    started = time.perf_counter()
    weights = hbm.load_model("engine")
    milliseconds = (time.perf_counter() - started) * 1000
    answer = sum(float(weight[0] @ weight[1]) for weight in weights.values())
    print(f"{len(weights)} layers mapped in {milliseconds:.1f} ms, answer {answer:.6g}", flush=True)
    sys.stdin.read()  # serves, until it is killed


def start():
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, __file__, "engine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said = process.stdout.readline().strip()
    print(f"answered {time.perf_counter() - started:.2f} s after it was started, Python's imports with it: {said}")
    return process


if __name__ == "__main__":
    if sys.argv[1:] == ["engine"]:
        engine()
    else:
        publish(int(sys.argv[1]) if sys.argv[1:] else 256)
        for _ in range(2):
            process = start()
            process.kill()
            process.wait()
