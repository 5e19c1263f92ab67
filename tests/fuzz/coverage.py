#!/usr/bin/env python3
"""One line of what `llvm-cov export` says, on standard input; the functions that nothing reached go to a file.
usage: coverage.py NAME INPUTS UNREACHED"""
import json
import os
import sys

name, inputs, unreached = sys.argv[1:]
data = json.load(sys.stdin)["data"][0]
wanted = {file["filename"] for file in data["files"]}
sources = {}
for function in data["functions"]:
    place = os.path.relpath(function["filenames"][0])
    if function["filenames"][0] in wanted:
        key = (place, function["name"].rsplit(":", 1)[-1])
        sources[key] = sources.get(key, 0) + function["count"]
with open(unreached, "w") as file:
    for (place, function), count in sorted(sources.items()):
        if not count:
            print(place, function, file=file)


def part(kind):
    of = data["totals"][kind]
    return f"{of['covered']:6} of {of['count']:5} {of['percent']:4.0f} %"


print(f"{name:12} {inputs:>7}  {part('functions'):>21}  {part('lines'):>21}  {part('branches'):>21}")
