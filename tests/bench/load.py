"""`hbmctl load` of a file beside dd with O_DIRECT on the same file, in turns.
usage: load.py HBMCTL FILE GIB RUNS       HBM_RUNTIME_DIR names the daemon; prints one row as JSON."""
import json
import os
import statistics
import struct
import subprocess
import sys
import time

MIB = 1 << 20
hbmctl, path, gib, runs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
LAYERS, TENSORS = 32, 4
tensor = gib * 1024 * MIB // (LAYERS * TENSORS)


def write_file():
    header = {}
    for n in range(LAYERS * TENSORS):
        header[f"layers.{n // TENSORS}.weight{n % TENSORS}"] = {
            "dtype": "BF16", "shape": [tensor // 8192, 4096], "data_offsets": [n * tensor, (n + 1) * tensor]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = os.urandom(64 * MIB)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, LAYERS * TENSORS * tensor, len(block)):
            turn = at // len(block) * 4099 % len(block)  # no two blocks alike
            file.write(block[turn:] + block[:turn])
        file.flush()
        os.fsync(file.fileno())


def evict():
    """Out of the page cache: a load that read it from there would measure memory."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load():
    evict()
    out = subprocess.run([hbmctl, "--json", "load", path, "--as", "bench-load"], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run([hbmctl, "rm", "bench-load"], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out)["seconds"]


def dd():
    evict()
    start = time.monotonic()
    subprocess.run(["dd", f"if={path}", "iflag=direct", "bs=16M", "of=/dev/null", "status=none"], check=True)
    return time.monotonic() - start


write_file()
size = os.stat(path).st_size
ours, beside = [], []
for n in range(runs + 1):
    times = load(), dd()
    if n:  # the first is the warm-up
        ours.append(size / 1e9 / times[0])
        beside.append(size / 1e9 / times[1])
ours.sort()
ratio = statistics.median(ours) / statistics.median(beside)
print(json.dumps({
    "what": f"load of a {gib} GiB safetensors file", "unit": "GB/s", "ours": statistics.median(ours), "low": ours[0],
    "high": ours[-1], "beside": statistics.median(beside), "beside_what": "dd iflag=direct bs=16M", "ratio": ratio,
    "aim": "ratio >= 0.8", "ok": ratio >= 0.8, "samples": runs}))
