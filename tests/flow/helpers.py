"""What the flow tests share: processes of their own, files of their own, and a daemon for a whole module.

    @host_only                      the test touches the memory itself, which it can only on the host device
    @root_only                      it needs other users, or a mount
    shared                          a daemon for the module; each test must leave it as empty as it was
    Child(function)                 a forked process that runs function(say) and stays until it is killed
    program(daemon)                 client_program.c, a client of libhbm that does what it is told
"""
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import termios
import time

import pytest

from conftest import BUILD, DEVICE, ROOT, Daemon
import wire
from wire import Refused

MIB = 1 << 20
OTHER = 65534  # "nobody": a user who owns nothing here
ERRORS = {}


def read_errors():
    for line in (ROOT / "proto" / "errors.def").read_text().splitlines():
        if line.startswith("ERROR("):
            name, number = line[6:].split(",")[:2]
            ERRORS[name] = -int(number)


read_errors()
ERROR_NAMES = {number: name for name, number in ERRORS.items()}


def host_only(test):
    """On another device there is no such test, rather than one that is waived."""
    return test if DEVICE == "host" else None


def gpu_only(test):
    return test if DEVICE == "cuda" else None


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users, mounts")


# ---- Refusals ----

@contextlib.contextmanager
def refused(name, *words):
    """The block is refused over hbmd.sock with this error, and the sentence has these words."""
    with pytest.raises(Refused) as caught:
        yield
    assert ERROR_NAMES[caught.value.status] == name, caught.value
    for word in words:
        assert str(word) in caught.value.detail, caught.value


def ctl_refused(result, code, *words):
    """hbmctl ended with this status and one line on stderr that has these words."""
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert str(word) in result.stderr, result.stderr


def ctl_done(daemon, *args, **more):
    result = daemon.ctl(*args, **more)
    assert result.returncode == 0, (args, result.stdout, result.stderr)
    return result.stdout


def ctl_json(daemon, *args):
    return json.loads(ctl_done(daemon, "--json", *args))


class Client(wire.Client):
    """One that says goodbye: a session whose link just ends is held until its process does, and that is the test's own."""

    def close(self):
        try:
            if self.page:
                self.socket.settimeout(5)
                self.call("bye")
        except (OSError, ConnectionError, ValueError):
            pass
        super().close()

    def let_go_when_asked(self, slot):
        """Nothing is locked there: waits for the event and gives the arena up."""
        while (event := self.receive()).name != "reclaim":
            self.events.append(event)
        self.let_go(slot)


# ---- What a daemon holds ----

def on_terminal(daemon, columns, *words):
    """What hbmctl prints on a terminal of that width, where no colours are wanted."""
    ours, theirs = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(daemon.runtime_dir), *words], stdin=subprocess.DEVNULL,
                               stdout=theirs, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: its end
        while more := os.read(ours, 1 << 16):
            shown += more
    os.close(ours)
    assert process.wait() == 0, shown
    return shown.decode().replace("\r\n", "\n")


def used(daemon, tier="device"):
    """What lies there, once what has been let go of is given back, which is in a moment. Without a GPU's host pool: memory
    kept a while for its last owner's next move."""
    def settled_rows():
        rows = [row for device in daemon.rpc("hbm.devices") for row in device["tiers"] if row["tier"] == tier]
        return None if any(row["closing"] for row in rows) else rows

    return sum(row["used"] - row.get("pooled", 0) for row in daemon.wait_for(settled_rows))


def empty(daemon, tier):
    return used(daemon, tier) == 0


def spill_fds(daemon):
    """The unlinked spill files, by the daemon's own fds."""
    found, directory = {}, f"/proc/{daemon.pid}/fd"
    for fd in os.listdir(directory):
        try:
            target, status = os.readlink(f"{directory}/{fd}"), os.stat(f"{directory}/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(str(daemon.state_dir)) and stat.S_ISREG(status.st_mode):
            found[status.st_ino] = f"{directory}/{fd}"
    return list(found.values())


def row_of(daemon, name):
    rows = [row for row in daemon.rpc("hbm.ls") if row["name"] == name]
    assert len(rows) == 1, (name, rows)
    return rows[0]


def tier_of(daemon, name):
    return row_of(daemon, name)["tier"]


def hash_of(daemon, sel):
    rows = daemon.rpc("hbm.hash", {"sel": sel})
    return {row["name"]: row["hash"] for row in rows}


def events(daemon, kind):
    return [event for event in daemon.rpc("hbm.events") if event["event"] == kind]


def settled(daemon):
    """No session is left, and so nothing that a client only leased."""
    status = daemon.rpc("hbm.status")
    return not (status["sessions"] or status["leases"] or status["quarantined"] or status["ops"])


def sweep(daemon):
    """Everything that was kept goes; then nothing may be left."""
    daemon.wait_for(lambda: settled(daemon), 20)
    for model in daemon.rpc("hbm.models"):
        daemon.rpc("hbm.rm", {"model": model["name"]})
    for buffer in daemon.rpc("hbm.ls"):
        daemon.rpc("hbm.free", {"sel": "id:" + buffer["id"]})
    left = daemon.rpc("hbm.status")
    assert (left["buffers"], left["models"]) == (0, 0)
    daemon.wait_for(lambda: all(empty(daemon, tier) for tier in ("device", "host", "disk")))


def put(daemon, name, data, *more):
    """A kept buffer of these bytes."""
    path = daemon.home / "put.bytes"
    path.write_bytes(data)
    return ctl_json(daemon, "put", name, path, *more)


def get(daemon, name):
    path = daemon.home / "get.bytes"
    ctl_done(daemon, "get", name, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def module_daemon():
    daemon = Daemon().start()
    yield daemon
    daemon.close()


@pytest.fixture
def shared(module_daemon):
    yield module_daemon
    module_daemon.check()
    assert module_daemon.process.poll() is None, f"hbmd ended with {module_daemon.process.returncode}:\n{module_daemon.log}"
    sweep(module_daemon)


@pytest.fixture
def client(shared):
    with Client(shared.socket) as connection:
        connection.hello()
        yield connection


def serves(daemon):
    """Another client gets what it asks for."""
    with Client(daemon.socket) as other:
        other.hello("served")
        grant, fd = other.alloc(4096)
        if fd is not None:
            os.close(fd)
        other.call("detach", lease=grant["lease"])
        other.call("bye")
    return True


def gone_with_words(link, *words):
    reason = link.gone()
    assert reason and all(word in reason for word in words), reason


def violation(daemon, child, *send, words=(), hello=True):
    """A client that sends this is disconnected with a reason, alone; a counter says it happened."""
    before = daemon.rpc("hbm.status")["violations"]

    def violate(say):
        with Client(daemon.socket) as link:
            if hello:
                link.hello()
            for one in send:
                one(link)
            say(link.gone() or "no reason")

    culprit = child(violate)
    reason = culprit.heard()
    assert all(word in reason for word in words), reason
    assert daemon.rpc("hbm.status")["violations"] == before + 1
    assert serves(daemon)
    culprit.kill()


@contextlib.contextmanager
def deaf(daemon):
    """It hears nothing meanwhile: what is sent is there all at once, and ours of an fd may be closed before its own."""
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


# ---- Other users ----

@contextlib.contextmanager
def as_user(uid):
    """Sockets connected and files opened inside belong to that user: both are judged by the effective uid."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def let_others_in(daemon):
    os.chmod(daemon.home, 0o711)
    for path in (daemon.socket, daemon.control):
        os.chmod(path, 0o666)


# ---- Files ----

DTYPE_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
               "F32": 4, "I32": 4, "U32": 4, "F64": 8, "I64": 8, "U64": 8}


def safetensors(path, tensors, metadata=None, pad=0):
    """A file of {name: (dtype, shape, bytes)}, as the format's own writer lays it out."""
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8 + pad)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(row[2] for row in tensors.values()))
    return path


def shards(folder, tensors, metadata=None):
    """The same as a folder of a file a tensor, and their index."""
    parts = {name: f"model-{i + 1:05}-of-{len(tensors):05}.safetensors" for i, name in enumerate(tensors)}
    for name, part in parts.items():
        safetensors(folder / part, {name: tensors[name]}, metadata)
    index = {"metadata": {"total_size": sum(len(row[2]) for row in tensors.values())}, "weight_map": parts}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def layers(n, elements=4096, seed=1):
    """n layers of one F32 weight each, all different."""
    return {f"layers.{i}.weight": ("F32", (elements,), floats([((i + seed) * 31 + j % 251) / 7 for j in range(elements)]))
            for i in range(n)}


def load_layers(daemon, model="m", n=4, elements=4096, *more):
    path = safetensors(daemon.home / f"{model}.safetensors", layers(n, elements), {"format": "pt"})
    ctl_done(daemon, "load", path, "--as", model, *more)
    return path


# ---- Processes ----

class Child:
    """A forked process that runs function(say), then waits to be killed. heard() is the next line that it said."""

    def __init__(self, function):
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                function(lambda text="done": os.write(writer, f"{text}\n".encode()))
                while True:
                    signal.pause()
            except BaseException as error:  # pylint: disable=broad-except
                os.write(writer, f"! {error!r}\n".encode())
            finally:
                os._exit(1)
        os.close(writer)
        self.buffer = b""

    def heard(self, seconds=20):
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the child said nothing in time"
            more = os.read(self.reader, 65536)
            assert more, "the child ended"
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\n", 1)
        assert not line.startswith(b"! "), line.decode()
        return line.decode()

    def kill(self, number=signal.SIGKILL):
        if self.pid:
            os.kill(self.pid, number)
            os.waitpid(self.pid, 0)
            os.close(self.reader)
        self.pid = 0


@pytest.fixture
def child():
    made = []

    def make(function):
        made.append(Child(function))
        return made[-1]

    yield make
    for each in made:
        each.kill()


class ProgramError(Exception):
    def __init__(self, name, detail):
        super().__init__(f"{name}: {detail}")
        self.name, self.detail = name, detail


class Program:
    """One process of client_program.c."""

    def __init__(self, path, daemon, user=None):
        more = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = subprocess.Popen([path, str(daemon.runtime_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, **more)

    def say(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise ProgramError("ENDED", f"{self.process.wait()}: {self.process.stderr.read()}")
        word, *rest = line.split()
        if word == "error":
            raise ProgramError(rest[0], line.split(None, 2)[2].strip() if len(rest) > 1 else "")
        assert word == "ok", line
        return rest

    def ask(self, *words):
        self.say(*words)
        return self.hear()

    def alloc(self, name, size, flags=0, mode=0, group=""):
        index, id_, address, _ = self.ask("alloc", name, size, flags, mode, group)
        return int(index), id_, address

    def attach(self, name, access="ro", flags=0, timeout_ms=5000):
        index, id_, address, _ = self.ask("attach", name, access, flags, timeout_ms)
        return int(index), id_, address

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def end(self):
        """It closes its session and exits well: no leak, no sanitizer's word."""
        if self.process.poll() is None:
            _, errors = self.process.communicate(timeout=20)
            assert self.process.returncode == 0, (self.process.returncode, errors)


def sanitizer_flags():
    symbols = subprocess.run(["nm", str(BUILD / "libhbm.a")], capture_output=True, text=True, check=False).stdout
    flags = [("__asan_", "address"), ("__ubsan_", "undefined"), ("__tsan_", "thread")]
    found = ",".join(name for symbol, name in flags if symbol in symbols)
    return [f"-fsanitize={found}"] if found else []


def built_client():
    """client_program.c, beside what it tests."""
    target = BUILD / "tests" / "flow_client"
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread", f"-I{ROOT}",
                    f"-I{ROOT / 'client'}", *sanitizer_flags(), str(ROOT / "tests" / "flow" / "client_program.c"),
                    str(BUILD / "libhbm.a"), "-ldl", "-o", str(fresh)], check=True)
    os.replace(fresh, target)
    return str(target)


@pytest.fixture(scope="session")
def client_program():
    return built_client()


@pytest.fixture
def program(client_program):
    """program(daemon): a client of libhbm with an open session."""
    made = []

    def make(daemon, user=None, open_flags=0, opened=True):
        made.append(Program(client_program, daemon, user))
        if opened:
            made[-1].ask("open", open_flags)
        return made[-1]

    yield make
    for each in made:
        each.end()


@contextlib.contextmanager
def fails(name, *words):
    """The block's call of libhbm, or its RPC, ends with this error."""
    with pytest.raises(Exception) as caught:
        yield
    assert getattr(caught.value, "name", None) == name, caught.value
    text = f"{getattr(caught.value, 'detail', '')} {caught.value} {getattr(caught.value, 'data', '')}"
    for word in words:
        assert str(word) in text, text


def fds_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def connect(path, kind=socket.SOCK_SEQPACKET):
    connection = socket.socket(socket.AF_UNIX, kind)
    connection.settimeout(10)
    connection.connect(str(path))
    return connection
