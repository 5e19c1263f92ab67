"""Reads `hbmctl --json ls 'MODEL/*'` and prints shell assignments: what the demo offloads and what it encodes.

host, disk: groups (layers) of middling size, two and one where there are three; force: --force where they are more than
the 30 % that may go without; float_sel: a selector of floating-point buffers, empty where there are none."""
import json
import re
import shlex
import statistics
import sys

FLOATS = {"F32", "F16", "BF16"}
rows = json.load(sys.stdin)
size, floats = {}, {}
for row in rows:
    group = row["group"]
    size[group] = size.get(group, 0) + row["size"]
    floats[group] = floats.get(group, True) and row["dtype"] in FLOATS


def natural(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


middle = statistics.median(size.values())
layers = sorted(size, key=lambda group: (abs(size[group] - middle), natural(group)))[:3]
layers.sort(key=natural)
host, disk = (layers[:-1], layers[-1:]) if len(layers) > 1 else (layers, layers)
away = sum(size[group] for group in set(host + disk))
force = "--force" if away > 0.3 * sum(size.values()) else ""

whole = [group for group in host if floats[group]]
codable = [row for row in rows if row["dtype"] in FLOATS and row["size"]]
if whole:
    float_sel = f"group:{rows[0]['model']}/{whole[0]}"
else:
    float_sel = max(codable, key=lambda row: row["size"])["name"] if codable else ""

print("host=(" + " ".join(map(shlex.quote, host)) + ")")
print("disk=(" + " ".join(map(shlex.quote, disk)) + ")")
print(f"force=({force})")
print("float_sel=" + shlex.quote(float_sel))
