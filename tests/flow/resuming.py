"""Clients that outlive the owner, which is killed under them: resume_program.c."""
import json
import os
import signal
import subprocess
import time

import pytest

from conftest import BUILD, ROOT
from helpers import sanitizer_flags


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "resume_program"
    subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", f"-I{ROOT}", "-Wall", "-Wextra", "-Werror", "-g", "-O1", *sanitizer_flags(),
                    str(ROOT / "tests/flow/resume_program.c"), str(BUILD / "libhbm.a"), "-pthread", "-ldl",
                    "-o", str(path)], check=True)
    return path


class Holder:
    def __init__(self, binary, daemon, prefix=""):
        self.daemon = daemon
        self.process = subprocess.Popen([str(binary), str(daemon.runtime_dir), prefix], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1)
        self.start = self.hear()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def unharmed(self):
        """No error so far, and everything where and what it was. The number of calls made."""
        now = self.ask("show")
        assert now["errors"] == 0, now["first_error"]
        assert (now["mine"], now["model"]) == (self.start["mine"], self.start["model"])
        return now["calls"]

    def end(self):
        self.process.stdin.close()
        return self.process.wait(30)


def status(daemon):
    try:
        return daemon.rpc("hbm.status")
    except (OSError, ConnectionError):
        return {"pid": 0}


def killed(daemon):
    """SIGKILL to the owner; when it was."""
    old = daemon.pid
    at = time.monotonic()
    os.kill(old, signal.SIGKILL)
    return old, at


def back(daemon, old):
    daemon.wait_for(lambda: status(daemon)["pid"] not in (0, old), 30)
    daemon.wait_ready()


def resumed(daemon, holder):
    states = [row["state"] for row in daemon.rpc("hbm.sessions") if row["pid"] == holder.process.pid]
    return states == ["open"]
