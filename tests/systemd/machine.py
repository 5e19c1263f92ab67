"""A machine of its own for the tests: boot.sh's systemd, with hbmd installed in it by the script that `make install` runs."""
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import pytest

from conftest import ROOT

BOOT = ROOT / "tests" / "systemd" / "boot.sh"
START_SECONDS = 30


class Failed(AssertionError):
    def __init__(self, command, result):
        super().__init__(f"{' '.join(map(str, command))} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        self.result = result


class Machine:
    def __init__(self, *directories):
        """Boots. The directories are seen inside as self.inside(directory)."""
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="hbm-systemd-", dir="/tmp"))
        self.seen = {pathlib.Path(each): f"/run/seen/{i}" for i, each in enumerate([ROOT, *directories], 1)}
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", str(BOOT), str(self.scratch), *map(str, self.seen)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pid = None
        word, _, rest = self.process.stdout.readline().partition(" ")
        if word == "waived:":
            self.process.wait()
            shutil.rmtree(self.scratch, ignore_errors=True)
            pytest.skip(f"waived: {rest.strip()}")
        assert word == "init", (word, rest, self.process.stdout.read())
        self.pid = int(rest)
        self.wait_for(lambda: self.run("systemctl", "is-active", "basic.target", check=False).returncode == 0, START_SECONDS)

    def inside(self, path):
        """Where a file below one of the directories is, inside."""
        for directory, seen in self.seen.items():
            if path == directory or directory in path.parents:
                return seen + str(path)[len(str(directory)):]
        raise ValueError(path)

    def outside(self, path):
        """A file of the machine, as it is seen from here."""
        return pathlib.Path(f"/proc/{self.pid}/root{path}")

    def enter(self, *command):
        return ["nsenter", "-t", str(self.pid), "-a", "--", *map(str, command)]

    def run(self, *command, check=True, seconds=60):
        result = subprocess.run(self.enter(*command), capture_output=True, text=True, timeout=seconds, check=False,
                                stdin=subprocess.DEVNULL)
        if check and result.returncode:
            raise Failed(command, result)
        return result

    def close(self):
        """Its last process is gone when this returns, and its cgroup with it."""
        self.process.stdin.close()
        output = self.process.stdout.read()
        self.process.wait(20)
        assert "still in use" not in output and not self.scratch.exists(), output

    def wait_for(self, condition, seconds=10):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if self.process.poll() is not None:
                raise AssertionError(f"systemd ended: {self.process.stdout.read()}")
            assert time.monotonic() < deadline, "it did not come to pass in time"
            time.sleep(0.02)
        return found

    # ---- systemd ----

    def systemctl(self, *words, **more):
        return self.run("systemctl", *words, **more)

    def property(self, name, unit="hbmd.service"):
        return self.systemctl("show", unit, "-P", name).stdout.strip()

    def journal(self, since=None, unit="hbmd.service"):
        """The entries of a unit, what systemd says of it among them, from the cursor on."""
        self.run("journalctl", "--sync")
        more = [f"--after-cursor={since}"] if since else []
        return [json.loads(line) for line in self.run("journalctl", "-u", unit, "-o", "json", *more).stdout.splitlines()]

    def messages(self, since=None):
        return "\n".join(str(entry["MESSAGE"]) for entry in self.journal(since))

    def cursor(self):
        self.run("journalctl", "--sync")
        found = re.search(r"-- cursor: (.*)", self.run("journalctl", "-n", "0", "--show-cursor").stdout)
        return found[1] if found else None

    # ---- hbmd ----

    def install(self, build, version):
        """Over what is there, as `make install` does."""
        self.run("env", f"BUILD={self.inside(build)}", f"VERSION={version}", "PREFIX=/usr", "DESTDIR=",
                 f"{self.inside(ROOT)}/tests/tools/install.sh")

    def ctl(self, *words, check=True):
        return self.run("hbmctl", *words, check=check)

    def json(self, *words):
        return json.loads(self.ctl("--json", *words).stdout)

    def serves(self):
        """It is active, and answers; the pid of the process that does."""
        if self.property("ActiveState") != "active":
            return None
        answer = self.ctl("--json", "status", check=False)
        return json.loads(answer.stdout)["pid"] if answer.returncode == 0 else None

    def main_pid(self):
        return int(self.property("MainPID"))

    def kill(self, number="KILL"):
        """To the owner; the next one's pid once it serves."""
        before = self.main_pid()
        self.run("kill", f"-{number}", before)
        return self.wait_for(lambda: (pid := self.serves()) and pid != before and pid, 20)
