"""Rows of measurements as one table, and as JSON with what they were measured on.
usage: table.py host|gpu DIR OUT.json       DIR: rows, device, and where they ran worker.json and codec.json"""
import datetime
import json
import os
import platform
import subprocess
import sys

mode, folder, out = sys.argv[1:4]


def read(name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return file.read()


def ratio_row(what, unit, ours, low, high, beside, beside_what, bound, samples):
    row = {"what": what, "unit": unit, "ours": ours, "low": low, "high": high, "samples": samples}
    if beside:
        row |= {"beside": beside, "beside_what": beside_what, "ratio": ours / beside}
        if bound:
            row |= {"aim": f"ratio >= {bound}", "ok": row["ratio"] >= bound}
    return row


# What a codec reaches of a copy of the same bytes.
def codec_bound(name):
    if name.startswith("receipt"):  # as many bytes as its codec, in 1.5 times the time
        return 0.65
    if name.startswith("histogram"):  # of 16-bit floats in twice the time of a read; of fp32 two passes share that
        return 0.5 if name == "histogram of bf16" else None
    if "per tensor" in name and name.startswith("bf16"):
        return 0.90
    return 0.97 if name.startswith(("bf16 -> int8", "bf16 -> fp8", "bf16 -> int4")) else 0.95


def codec_rows():
    text = read("codec.json")
    data = json.loads(text) if text else {"rows": []}
    for row in data["rows"]:
        yield ratio_row("codec " + row["name"], "GB/s", row["gb_per_s"], row["gb_per_s_min"], row["gb_per_s_max"],
                        row["copy_gb_per_s"], "copy of the same bytes", codec_bound(row["name"]), data["runs"])


# The worker's job -> the bare thing of the same size beside it, and how much of it is wanted.
WORKER = {
    "device to host": ("bare pinned copy down", 0.95),
    "host to device": ("bare pinned copy up", 0.95),
    "both at once": ("bare pinned copies, both", 0.90),
    "device to host, checksum": ("bare pinned copy down", 0.95),
    "host to device, checksum": ("bare pinned copy up", 0.95),
    "both at once, checksum": ("bare pinned copies, both", 0.90),
    "file to device": ("O_DIRECT reads, bare", 0.80),
    "disk to device, checksum": ("O_DIRECT reads, bare", None),
    "device to disk, checksum": (None, None),
    "disk to device, checksum, encrypted": ("disk to device, checksum", None),
    "device to disk, checksum, encrypted": ("device to disk, checksum", None),
    "cipher, 1 thread": (None, None),
    "cipher, 4 threads": (None, None),
}


def worker_rows():
    text = read("worker.json")
    data = json.loads(text) if text else {"rows": []}
    speed = {(row["what"], row["bytes"]): row["gb_s"] for row in data["rows"]}
    for row in data["rows"]:
        if row["what"] in WORKER:
            bare, bound = WORKER[row["what"]]
            yield ratio_row(f"worker: {row['what']}, {row['bytes'] >> 20} MiB", "GB/s", row["gb_s"], row["slowest"],
                            row["fastest"], speed.get((bare, row["bytes"])), bare, bound, row["rounds"])


def ask(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def number(value):
    return "" if value is None else f"{value:.4g}" if abs(value) < 10000 else f"{value:.0f}"


def columns(row):
    unit = " " + row["unit"] if row["unit"] else ""
    spread = "" if row["low"] == row["high"] else f" ({number(row['low'])}..{number(row['high'])})"
    beside = f"{number(row['beside'])}{unit} {row['beside_what']}" if "beside" in row else ""
    ok = {True: "yes", False: "NO", None: ""}[row.get("ok")]
    return [row["what"], number(row["ours"]) + unit + spread, beside, number(row.get("ratio")), row.get("aim", ""), ok]


rows = [json.loads(line) for line in (read("rows") or "").splitlines()] + list(worker_rows()) + list(codec_rows())
document = {
    "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    "command": "make bench-gpu" if mode == "gpu" else "make bench",
    "device": (read("device") or "").strip(),
    "driver": ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0") if mode == "gpu" else None,
    "kernel": platform.release(),
    "cpus": os.cpu_count(),
    "commit": ask("git", "rev-parse", "--short", "HEAD") or None,
    "rows": rows,
}
os.makedirs(os.path.dirname(out), exist_ok=True)
with open(out, "w") as file:
    json.dump(document, file, indent=1)
    file.write("\n")

table = [["what", "ours (spread)", "beside it", "ratio", "aim", "ok?"]] + [columns(row) for row in rows]
widths = [max(len(line[i]) for line in table) for i in range(6)]
print(f"{document['device']}, driver {document['driver'] or 'none'}, Linux {document['kernel']}, {document['date']}")
for line in table:
    print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
judged = [row["ok"] for row in rows if "ok" in row]
print(f"{sum(judged)} of {len(judged)} aims reached; written to {out}")
