"""Two processes serve one model: whoever asks first has the file loaded, and both compute in the same memory.

    python3 share.py MODEL.safetensors          (`hbmctl rm shared` afterwards)
"""
import os
import subprocess
import sys
import time

import hbm


def serve(path):
    started = time.perf_counter()
    weights = hbm.load_model("shared", path=path)
    milliseconds = (time.perf_counter() - started) * 1000
    matrices = [weight for weight in weights.values() if len(weight.shape) == 2 and "float" in str(weight.dtype)]
    answer = sum(float((weight[:1] @ weight[:1].T)[0, 0]) for weight in matrices)
    sys.stdout.write(f"process {os.getpid()}: {len(weights)} tensors after {milliseconds:.1f} ms, answer {answer:.6g}\n")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        others = [subprocess.Popen([sys.executable, *sys.argv, "serve"]) for _ in range(2)]
        sys.exit(max(other.wait() for other in others))
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    serve(sys.argv[1])
