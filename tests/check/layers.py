#!/usr/bin/env python3
"""Holds the layers of the architecture against the include lines: folders are layers, the include line shows the layer.

Prints each violation and ends 1 if there is one. `layers.py --self-test` proves that it sees them."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CUDA = ("cuda", "nvml", "cufile", "cub/", "thrust/", "cooperative_groups", "nvtx")

# Longest prefix decides. (of ours: path prefixes a file may include, of others: headers in <> beyond libc and POSIX)
LAYERS = {
    "proto/": (["proto/"], []),
    "kernels/": (["kernels/", "proto/vocab.h"], CUDA),
    "config/": (["config/", "daemon/base/"], ["ini.h"]),
    "daemon/base/": (["daemon/base/"], []),
    "daemon/core/": (["daemon/core/", "daemon/base/", "proto/", "daemon/job/job.h"], ["xxhash.h"]),
    "daemon/job/": (["daemon/job/", "daemon/base/", "proto/"], ["uv.h"]),
    "daemon/wire/": (["daemon/wire/", "daemon/core/", "daemon/base/", "proto/"], ["uv.h"]),
    "daemon/rpc/": (["daemon/rpc/", "daemon/core/", "daemon/base/", "proto/"], ["uv.h", "cjson/"]),
    "daemon/": (["daemon/", "config/", "proto/"], ["uv.h", "systemd/"]),
    "daemon/worker/": (["daemon/worker/", "daemon/base/", "proto/", "kernels/"], ["liburing.h", "xxhash.h", "openssl/"]),
    "daemon/worker/cuda/": (["daemon/worker/", "daemon/base/", "proto/", "kernels/"], ["liburing.h", "xxhash.h", *CUDA]),
    "client/": (["client/", "hbm.h", "proto/"], []),
    "client/hbm.h": (["proto/vocab.h", "proto/errors.h"], []),
    "client/ctl/": (["client/", "hbm.h", "proto/"], ["cjson/", "xxhash.h"]),
    "client/python/": (["client/", "hbm.h", "proto/"], ["Python.h", "structmember.h"]),
}
# daemon/*.c is above all layers but the worker, which is another process.
FORBIDDEN = {"daemon/": ["daemon/worker/", "kernels/"]}
# Headers that are neither libc's nor POSIX's: only where a layer lists them.
FOREIGN = ("uv.h", "cjson/", "systemd/", "liburing.h", "xxhash.h", "openssl/", "ini.h", "Python.h", "structmember.h", "cmocka.h", *CUDA)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def layer_of(path):
    return max((prefix for prefix in LAYERS if path.startswith(prefix)), key=len, default=None)


def violations(path, text):
    layer = layer_of(path)
    if layer is None:
        yield f"{path}: lies in no layer"
        return
    ours, others = LAYERS[layer]
    for mark, header in INCLUDE.findall(text):
        if mark == '"':
            allowed = header.startswith(tuple(ours)) and not header.startswith(tuple(FORBIDDEN.get(layer, ["\0"])))
        else:
            allowed = not header.startswith(FOREIGN) or header.startswith(tuple(others) or ("\0",))
        if not allowed:
            yield f"{path}: {layer} may not include {mark}{header}{'>' if mark == '<' else mark}"


def self_test():
    seen = [
        ("daemon/core/x.c", "#include <uv.h>"), ("daemon/core/x.c", '#include "daemon/wire/link.h"'),
        ("daemon/rpc/x.c", '#include "daemon/wire/link.h"'), ("daemon/wire/x.c", "# include <cjson/cJSON.h>"),
        ("kernels/x.cu", '#include "proto/messages.h"'), ("client/hbm.h", '#include "proto/packet.h"'),
        ("client/lib/x.c", '#include "daemon/base/list.h"'), ("daemon/main.c", "#include <cuda.h>"),
        ("daemon/main.c", '#include "daemon/worker/job.h"'), ("daemon/worker/io.c", "#include <cuda_runtime.h>"),
        ("proto/x.c", '#include "daemon/base/list.h"'), ("elsewhere/x.c", ""),
    ]
    passed = [
        ("daemon/core/x.c", '#include <xxhash.h>\n#include <stdio.h>\n#include "daemon/job/job.h"'),
        ("kernels/x.cu", '#include <cuda_fp16.h>\n#include "proto/vocab.h"'), ("daemon/main.c", "#include <systemd/sd-daemon.h>"),
        ("daemon/worker/cuda/x.c", "#include <cuda.h>"), ("client/hbm.h", '#include "proto/errors.h"'),
    ]
    wrong = [case for case in seen if not list(violations(*case))] + [case for case in passed if list(violations(*case))]
    for case in wrong:
        print(f"FAIL - judged wrongly: {case}")
    return not wrong


def main():
    found, n = [], 0
    for folder in ("proto", "kernels", "config", "daemon", "client"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh"):
                n += 1
                found += violations(str(path.relative_to(ROOT)), path.read_text(errors="replace"))
    for violation in found:
        print(violation)
    print(f"{'FAIL' if found else 'ok'} - {n} files keep to their layers" + (f", but for {len(found)} lines" if found else ""))
    return not found


if not self_test() or (sys.argv[1:] != ["--self-test"] and not main()):
    sys.exit(1)
