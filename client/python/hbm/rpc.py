"""The socket for people and scripts, control.sock, for what libhbm has no call for."""
from __future__ import annotations

import json
import os
import socket
from typing import Any

from .errors import NoDaemon, Timeout, error_of


def call(runtime_dir: str | os.PathLike | None, method: str, params: dict, timeout: float | None) -> Any:
    """The method's result, or the exception that its error is. `hbmctl --json` prints the same; hbm-rpc(7) has all of them."""
    path = os.path.join(directory(runtime_dir), "control.sock")
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(timeout)
        try:
            control.connect(path)
        except OSError as failure:
            raise NoDaemon(f"{path}: {failure}; is hbmd running, and may this user connect?") from None
        control.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        try:
            with control.makefile("rb") as lines:
                answer = json.loads(lines.readline() or "{}")
        except socket.timeout:  # TimeoutError from Python 3.10 on
            raise Timeout(f"{method} has not ended in {timeout} s, and goes on; see `hbmctl ops`") from None
    if "result" in answer:
        return answer["result"]
    error = answer.get("error", {"code": 0, "message": f"{path} was closed before it answered"})
    raise error_of(error.get("data", {}).get("error", "DISCONNECTED"), error["code"], error["message"])


def directory(runtime_dir: str | os.PathLike | None) -> str:
    """As hbm_open() finds it."""
    named = runtime_dir or os.environ.get("HBM_RUNTIME_DIR")
    if named:
        return os.fspath(named)
    if os.path.isdir("/run/hbmd"):
        return "/run/hbmd"
    return os.path.join(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "hbmd")
