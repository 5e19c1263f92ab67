"""Offload to disk and restore of one buffer, beside fio, where it is installed, on the same file system with the same
requests, in turns.
usage: disk.py HBMCTL DIRECTORY MIB RUNS [SUFFIX]       HBM_RUNTIME_DIR names the daemon; prints two rows as JSON."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

hbmctl, folder, mib, runs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
suffix = sys.argv[5] if len(sys.argv) > 5 else ""
MIB = 1 << 20
BLOCK, DEPTH = "4M", 16  # what a worker has in flight of one job: daemon/worker/io.c, four lanes of four
source, other = os.path.join(folder, "disk.source"), os.path.join(folder, "disk.fio")


def ctl(*args):
    start = time.monotonic()
    subprocess.run([hbmctl, "--json", *args], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def fio(way):
    """GB/s. A new file to write to, as ours is."""
    if way == "write" and os.path.exists(other):
        os.unlink(other)
    out = subprocess.run(["fio", "--name=beside", f"--filename={other}", f"--rw={way}", f"--bs={BLOCK}", f"--iodepth={DEPTH}",
                          "--ioengine=io_uring", "--direct=1", f"--size={mib}M", "--output-format=json"],
                         check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(out[out.index(b"{"):])["jobs"][0][way]["bw_bytes"] / 1e9


def row(what, ours, beside):
    ours.sort()
    told = {"what": f"{what} of {mib} MiB{suffix}", "unit": "GB/s", "ours": statistics.median(ours), "low": ours[0],
            "high": ours[-1], "samples": runs}
    if beside:
        ratio = statistics.median(ours) / statistics.median(beside)
        told |= {"beside": statistics.median(beside), "beside_what": f"fio, {BLOCK}, depth {DEPTH}", "ratio": ratio,
                 "aim": "ratio >= 0.9", "ok": ratio >= 0.9}
    print(json.dumps(told))


with open(source, "wb") as file:
    for _ in range(0, mib, 64):
        file.write(os.urandom(64 * MIB))
ctl("put", "bench-disk", source)
os.unlink(source)
gb = mib * MIB / 1e9
down, up, written, read = [], [], [], []
has_fio = shutil.which("fio")
if not has_fio:
    print("left out: fio is not installed, and the disk's own figure with it", file=sys.stderr)
for n in range(runs + 1):
    turn = []
    for rate, beside, way, verb in ((down, written, "write", ["offload", "bench-disk", "--to", "disk"]),
                                    (up, read, "read", ["restore", "bench-disk"])):
        turn.append((rate, gb / ctl(*verb)))
        if has_fio:
            turn.append((beside, fio(way)))
    for rates, rate in turn if n else []:  # the first is the warm-up
        rates.append(rate)
ctl("free", "bench-disk")
if has_fio:
    os.unlink(other)
row("offload to disk", down, written)
row("restore from disk", up, read)
