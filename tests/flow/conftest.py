"""Real daemons for the flow tests.

HBM_BUILD names the build folder (default: build); HBM_TEST_DEVICE the device kind (default: host).
A daemon that dies by itself, or whose sanitizer speaks, fails the test that had it.

Runs that are given the same empty folder, HBM_SHARE, share the tests: each takes the next module that none has taken.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("HBM_BUILD", ROOT / "build")).resolve()
DEVICE = os.environ.get("HBM_TEST_DEVICE", "host")
START_SECONDS = 30

# The flows are of one device, the first that is visible; those of several serve the host's memory as such.
if DEVICE == "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]

# What these test is the same on every device, or bytes in host memory that a client or NumPy looks at: `make check` runs them.
collect_ignore = [] if DEVICE == "host" else [
    f"test_{name}.py" for name in ("bundle", "complete", "config", "doctor", "faults_names", "faults_protocol", "kubernetes", "many", "map",
                            "metrics", "probes", "python", "rpc", "runtime_dir", "top")]
collect_ignore_glob = [] if DEVICE == "host" else ["test_python_*.py", "test_systemd*.py"]


SHARE = os.environ.get("HBM_SHARE")
LONG = ("test_systemd_restart", "test_resume", "test_park", "test_pressure", "test_workers")  # they begin, so that no run ends alone
taken = {}  # by module, whether by this run


def pytest_collection_modifyitems(items):
    if SHARE:
        items.sort(key=lambda item: (*LONG, item.module.__name__).index(item.module.__name__))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Says that it is done where another run does it."""
    module = item.module.__name__
    if SHARE and module not in taken:
        try:
            os.mkdir(os.path.join(SHARE, module))
            taken[module] = True
        except FileExistsError:
            taken[module] = False
    return None if taken.get(module, True) else True


class RpcError(Exception):
    def __init__(self, error):
        super().__init__(error["message"])
        self.code, self.message, self.data = error["code"], error["message"], error.get("data", {})
        self.name = self.data.get("error")


class Operator:
    """A connection to control.sock: lines as they are."""

    def __init__(self, path, timeout=20):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.bytes = b""
        self.id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, line):
        data = line if isinstance(line, bytes) else json.dumps(line).encode()
        self.socket.sendall(data + b"\n")

    def receive(self):
        """The next line as JSON; None at the end."""
        while b"\n" not in self.bytes:
            try:
                more = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self.bytes += more
        line, self.bytes = self.bytes.split(b"\n", 1)
        return json.loads(line)

    def ask(self, line):
        self.send(line)
        return self.receive()

    def rpc(self, method, params=None):
        self.id += 1
        request = {"jsonrpc": "2.0", "id": self.id, "method": method}
        if params is not None:
            request["params"] = params
        answer = self.ask(request)
        if answer is None:
            raise ConnectionError("the daemon closed the connection")
        if "error" in answer:
            raise RpcError(answer["error"])
        assert answer["id"] == self.id
        return answer["result"]


class Daemon:
    def __init__(self, supervise=False, options=(), config=""):
        # Short: a socket's path has room for 107 bytes.
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="hbm-", dir="/tmp"))
        self.runtime_dir, self.state_dir = self.home / "run", self.home / "state"
        self.log_path = self.home / "log"
        self.supervise, self.options = supervise, list(options)
        if DEVICE == "cuda" and "host_pool_bytes" not in config:
            config = "host_pool_bytes = 0\n" + config  # what counts jobs and bytes counts those that it asked for
        if config:
            (self.home / "hbmd.conf").write_text(config)
            self.options += ["--config", str(self.home / "hbmd.conf")]
        self.process = None
        self.expect_death = False

    @property
    def socket(self):
        return self.runtime_dir / "hbmd.sock"

    @property
    def control(self):
        return self.runtime_dir / "control.sock"

    @property
    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def pid(self):
        """Of the process that serves: under --supervise the child."""
        return self.rpc("hbm.status")["pid"]

    def command(self):
        command = [str(BUILD / "hbmd"), "--device", DEVICE, "--runtime-dir", str(self.runtime_dir),
                   "--state-dir", str(self.state_dir), *self.options]
        return command + ["--supervise"] * self.supervise

    def launch(self):
        with open(self.log_path, "ab") as log:
            return subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def start(self):
        self.expect_death = False
        self.process = self.launch()
        self.wait_ready()
        return self

    def wait_ready(self, seconds=START_SECONDS):
        """Until it answers and its devices are ready."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"hbmd ended with {self.process.returncode}:\n{self.log}")
            try:
                devices = self.rpc("hbm.devices")
                if devices and all(device["state"] != "starting" for device in devices):
                    return
            except (OSError, ConnectionError):
                pass
            time.sleep(0.02)
        raise AssertionError(f"hbmd was not ready after {seconds} s:\n{self.log}")

    def operator(self, timeout=20):
        return Operator(self.control, timeout)

    def rpc(self, method, params=None):
        with self.operator() as operator:
            return operator.rpc(method, params)

    def ctl(self, *args, timeout=60, stderr=subprocess.PIPE, **more):
        return subprocess.run([str(BUILD / "hbmctl"), "--runtime-dir", str(self.runtime_dir), *map(str, args)],
                              stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=timeout, check=False, **more)

    def wait_for(self, condition, seconds=10):
        """Calls condition until it gives something true, and returns that."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, "it did not come to pass in time"
            time.sleep(0.01)
        return found

    def stop(self, seconds=20):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill9(self):
        """SIGKILL to the process that serves. A supervisor starts the next; else start() does."""
        pid = self.pid
        self.expect_death = not self.supervise
        os.kill(pid, signal.SIGKILL)
        if not self.supervise:
            self.process.wait(10)
        return pid

    def check(self):
        """It lives, or was meant to die, and no sanitizer found anything."""
        died = self.process.poll() is not None and self.process.returncode != 0 and not self.expect_death
        assert not died, f"hbmd ended by itself with {self.process.returncode}:\n{self.log}"
        found = re.search(r"(ERROR: \w+Sanitizer|runtime error:)", self.log)
        assert not found, self.log

    def close(self):
        try:
            if self.process:
                self.stop()
                self.check()
        finally:
            if self.process and self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def make_daemon():
    """Daemon(...) with options of the test's own, not started."""
    made = []

    def make(**how):
        made.append(Daemon(**how))
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()


@pytest.fixture
def daemon(make_daemon):
    return make_daemon().start()


@pytest.fixture
def supervised_daemon(make_daemon):
    return make_daemon(supervise=True).start()
