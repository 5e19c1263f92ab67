"""Offload to disk and restore of one buffer, beside fio on the same file system with the same requests, in turns; beside
dd, a request at a time, where fio is not installed.
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


def dd(way):
    """The same, a request at a time."""
    files = ["if=/dev/zero", f"of={other}", "oflag=direct"] if way == "write" else [f"if={other}", "of=/dev/null", "iflag=direct"]
    if way == "write" and os.path.exists(other):
        os.unlink(other)
    start = time.monotonic()
    subprocess.run(["dd", *files, f"bs={BLOCK}", f"count={mib // 4}", "status=none"], check=True)
    return gb / (time.monotonic() - start)


has_fio = shutil.which("fio")
bare, bare_name = (fio, f"fio, {BLOCK}, depth {DEPTH}") if has_fio else (dd, f"dd, {BLOCK}, direct, depth 1")


def row(what, ours, beside):
    ours.sort()
    ratio = statistics.median(ours) / statistics.median(beside)
    told = {"what": f"{what} of {mib} MiB{suffix}", "unit": "GB/s", "ours": statistics.median(ours), "low": ours[0],
            "high": ours[-1], "beside": statistics.median(beside), "beside_what": bare_name, "ratio": ratio, "samples": runs}
    if has_fio:
        told |= {"aim": "ratio >= 0.9", "ok": ratio >= 0.9}
    print(json.dumps(told))


with open(source, "wb") as file:
    for _ in range(0, mib, 64):
        file.write(os.urandom(64 * MIB))
ctl("put", "bench-disk", source)
os.unlink(source)
gb = mib * MIB / 1e9
down, up, written, read = [], [], [], []
if not has_fio:
    print("fio is not installed: dd is beside the disk's figures, and they have no aim", file=sys.stderr)
for n in range(runs + 1):
    away, beside_away = gb / ctl("offload", "bench-disk", "--to", "disk"), bare("write")
    back, beside_back = gb / ctl("restore", "bench-disk"), bare("read")
    if n:  # the first is the warm-up
        down.append(away), up.append(back), written.append(beside_away), read.append(beside_back)
ctl("free", "bench-disk")
os.unlink(other)
row("offload to disk", down, written)
row("restore from disk", up, read)
