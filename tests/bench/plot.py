"""Draws what the measurements traced: throughput over time, and the lanes of a layer-by-layer forward, as SVG.
usage: plot.py TRACE PREFIX DEVICE       writes PREFIX-throughput.svg and PREFIX-lanes.svg, each if it was traced"""
import datetime
import html
import json
import os
import sys

WIDTH, LEFT, RIGHT = 900, 120, 20
COLOURS = {"wake": "#1f77b4", "sleep": "#ff7f0e", "computing": "#1f77b4", "waiting": "#d62728", "to the device": "#2ca02c",
           "to host memory": "#ff7f0e"}
BUCKETS = 40


class Picture:
    def __init__(self, title, height, end):
        self.height, self.end = height, end
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
        self.text(LEFT, 20, title, size=14)

    def x(self, seconds):
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.end

    def text(self, x, y, text, anchor="start", colour="black", size=12):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
                          f'{html.escape(text)}</text>')

    def line(self, points, colour, width=2.0, dash=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
                          f'stroke-dasharray="{dash}"/>')

    def bar(self, start, end, y, height, colour, label=""):
        width = max(self.x(end) - self.x(start), 0.5)
        self.parts.append(f'<rect x="{self.x(start):.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}" '
                          'stroke="white" stroke-width="0.5"/>')
        if width > 9 * len(label):
            self.text(self.x(start) + width / 2, y + height - 4, label, "middle", "white", 10)

    def times(self, top):
        """The axis below, and a line up from each of its ticks."""
        step = tick(self.end)
        unit, scale = ("ms", 1e3) if self.end < 2 else ("s", 1)
        bottom = self.height - 30
        for n in range(int(self.end / step) + 1):
            x = self.x(n * step)
            self.line([(x, top), (x, bottom)], "#dddddd", 1)
            self.text(x, bottom + 16, f"{n * step * scale:g}", "middle")
        self.text(WIDTH - RIGHT, self.height - 2, unit, "end")

    def write(self, path):
        with open(path, "w") as file:
            file.write("\n".join(self.parts) + "\n</svg>\n")
        print(f"drawn: {path}")


def tick(end):
    """A round step, of which 5 to 12 make the whole."""
    step = 10.0 ** -6
    while end / step > 12:
        for factor in (2, 2.5, 2):
            step *= factor
            if end / step <= 12:
                break
    return step


def rates(points):
    """GB/s of so many equal times, from when how many bytes had arrived."""
    known = [(0.0, 0.0)]
    for seconds, count in points:
        if count > known[-1][1]:
            known.append((seconds, count))
    end = known[-1][0]

    def at(seconds):
        for (t0, b0), (t1, b1) in zip(known, known[1:]):
            if seconds <= t1:
                return b0 + (b1 - b0) * (seconds - t0) / (t1 - t0) if t1 > t0 else b1
        return known[-1][1]

    if end <= 0:
        return []
    width = end / BUCKETS
    return [(n * width, (n + 1) * width, (at((n + 1) * width) - at(n * width)) / width / 1e9) for n in range(BUCKETS)]


def throughput(rows, device, path):
    moves, levels = {}, {}
    for row in rows:
        if "move" in row:
            moves.setdefault(row["move"], []).append((row["seconds"], row["bytes"]))
        elif "level" in row:
            levels[row["level"]] = row["gb_s"]
    curves = {name: rates(points) for name, points in moves.items()}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return
    most = max([gb_s for curve in curves.values() for _, _, gb_s in curve] + list(levels.values())) * 1.05
    size = max(count for points in moves.values() for _, count in points) / 2**30
    picture = Picture(f"A model of {size:.3g} GiB, host memory and back: {device}", 360, max(c[-1][1] for c in curves.values()))
    top, bottom = 40, 330

    def y(gb_s):
        return bottom - (bottom - top) * gb_s / most

    picture.times(top)
    step = tick(most)
    for n in range(int(most / step) + 1):
        picture.line([(LEFT, y(n * step)), (WIDTH - RIGHT, y(n * step))], "#dddddd", 1)
        picture.text(LEFT - 6, y(n * step) + 4, f"{n * step:g} GB/s", "end")
    for name, gb_s in levels.items():
        picture.line([(LEFT, y(gb_s)), (WIDTH - RIGHT, y(gb_s))], "black", 1, "6 4")
        picture.text(WIDTH - RIGHT - 4, y(gb_s) - 5, name, "end")
    for n, (name, curve) in enumerate(curves.items()):
        colour = COLOURS.get(name, "gray")
        picture.line([(picture.x(t), y(gb_s)) for start, end, gb_s in curve for t in (start, end)], colour)
        picture.text(LEFT + 10, bottom - 30 + 16 * n, name, colour=colour)
    picture.write(path)


def stacked(bars):
    """Those that overlap lie above each other: (row, bar)."""
    ends, placed = [], []
    for bar in sorted(bars, key=lambda bar: bar["from"]):
        row = next((n for n, end in enumerate(ends) if end <= bar["from"]), len(ends))
        ends[row:row + 1] = [bar["to"]]
        placed.append((row, bar))
    return len(ends), placed


def lanes(rows, device, path):
    bars = [row for row in rows if "lane" in row]
    if not bars:
        return
    groups = [("GPU" if "host" not in device else "CPU", ("waiting", "computing")), ("to the device", ("to the device",)),
              ("to host memory", ("to host memory",))]
    groups = [(title, *stacked([bar for bar in bars if bar["lane"] in names])) for title, names in groups]
    height = 40 + sum(18 * n + 16 for _, n, _ in groups) + 60
    picture = Picture(f"A layer-by-layer forward, 30 % of the layers away, two on their way: {device}", height,
                      max(bar["to"] for bar in bars))
    picture.times(36)
    y = 40
    for title, n, placed in groups:
        picture.text(LEFT - 8, y + 9 * max(n, 1) + 4, title, "end")
        for row, bar in placed:
            picture.bar(bar["from"], bar["to"], y + 18 * row, 16, COLOURS[bar["lane"]], str(bar["layer"]))
        y += 18 * n + 16
    for n, name in enumerate(("computing", "waiting", "to the device", "to host memory")):
        picture.parts.append(f'<rect x="{LEFT + 150 * n}" y="{y}" width="12" height="12" fill="{COLOURS[name]}"/>')
        picture.text(LEFT + 150 * n + 18, y + 11, name)
    picture.write(path)


trace, prefix, device = sys.argv[1:4]
rows = []
if os.path.exists(trace):
    with open(trace) as file:
        rows = [json.loads(line) for line in file]
device = f"{device.strip()}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
throughput(rows, device, prefix + "-throughput.svg")
lanes(rows, device, prefix + "-lanes.svg")
