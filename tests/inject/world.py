"""What failures are injected into: one daemon under a supervisor, with memory in every tier, models and encoded buffers;
and the books, which must be the same after each failure as before."""
import contextlib
import ctypes
import mmap
import os
import pathlib
import select
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "flow"))
# pylint: disable=wrong-import-position
from conftest import BUILD, DEVICE, Daemon, RpcError
from helpers import ERRORS, Program, ProgramError, ctl_done, fds_of, hash_of, layers, put, safetensors
from wire import Refused

ROLES = {"owner": 1, "worker": 2, "client": 3, "keeper": 4, "ctl": 5, "cuda worker": 6, "cuda client": 7}
SHORT = 10000
INTERNAL_ERROR = -32603  # JSON-RPC's own: memory for the request itself
PATIENCE = 30
DATA = bytes(range(256)) * 256
LIBRARIES = [str(BUILD / "tests" / name) for name in ["inject.so"] + ["inject_cuda.so"] * (DEVICE == "cuda")]


def files_of(pid):
    """What it has open, memory counted once: an owner has it open twice when somebody only reads it."""
    memory, others = set(), 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(OSError):  # a connection that ends meanwhile
            if os.readlink(path).startswith("/memfd:hbm-extent"):
                memory.add(os.stat(path).st_ino)
            else:
                others += 1
    return len(memory) + others


def read_terminal(terminal, other_end):
    """What has been written to it."""
    os.close(other_end)
    try:
        return os.read(terminal, 1 << 16).decode()
    except OSError:  # nothing
        return ""
    finally:
        os.close(terminal)


class Broken(Exception):
    """What must never happen."""


class Page(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("role", "n", "variant", "count", "trace", "error", "pid", "caller", "choices")] + [
        ("site", ctypes.c_char * 32), ("module", ctypes.c_char * 64)]


class Injector:
    """The page that inject.c reads."""

    def __init__(self, path):
        path.write_bytes(bytes(ctypes.sizeof(Page)))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.page = Page.from_buffer(self.memory)
        self.page.trace = int(bool(os.environ.get("HBM_INJECT_TRACE")))
        self.environment = {"LD_PRELOAD": ":".join(LIBRARIES), "HBM_INJECT": str(path),
                            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0:print_suppressions=0"}

    @contextlib.contextmanager
    def preloaded(self):
        """Programs that are started inside can be meant."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def arm(self, role, n, variant):
        page = self.page
        page.role = 0
        page.n, page.variant, page.count, page.error, page.caller, page.site, page.module = n, variant, 0, 0, 0, b"", b""
        page.role = ROLES[role]

    def disarm(self):
        self.page.role = 0

    @property
    def struck(self):
        return bool(self.page.error)

    def where(self):
        page = self.page
        of_driver = page.site.startswith((b"cu", b"nvml"))
        what = page.error if of_driver else "short" if page.error == SHORT else os.strerror(page.error)
        return f"{page.site.decode()}: {what} at {page.module.decode()}+{page.caller:#x}"


class PatientProgram(Program):
    """One that is not waited for without end."""

    def hear(self):
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        if not ready:
            raise Broken("the client hangs")
        return super().hear()


def typed(error):
    """An error as a user may get it: its name is in the table, or the link ended."""
    if isinstance(error, (RpcError, ProgramError)):
        return error.name in ERRORS or getattr(error, "code", 0) == INTERNAL_ERROR
    if isinstance(error, Refused):
        return True
    return isinstance(error, (ConnectionError, CtlFailed))


class CtlFailed(Exception):
    """hbmctl said in a sentence what is wrong."""


class World:
    def __init__(self, client_path, device=DEVICE):
        self.client_path, self.device = client_path, device
        # Two host devices have half of it each.
        sizes = "device_bytes = 512MiB\nhost_devices = 2\n" if device == "host" else "device_bytes = 256MiB\n"
        self.daemon = Daemon(supervise=True, config="reclaim_seconds = 1\n" + sizes)
        self.injector = Injector(self.daemon.home / "inject")
        self.operator = None
        self.worn = False  # what dies young again and again is started again with a growing pause
        self.sums = {}  # what the client program saw of them
        with self.injector.preloaded():
            self.daemon.start()
        self.user = None
        self.furnish()
        self.before = self.at_rest()

    # ---- What is there ----

    def furnish(self):
        daemon = self.daemon
        for tier in ("device", "host", "disk"):
            put(daemon, f"in-{tier}", DATA + tier.encode())
            if tier != "device":
                ctl_done(daemon, "offload", f"in-{tier}", "--to", tier)
        self.file = safetensors(daemon.home / "small.safetensors", layers(2), {"format": "pt"})
        ctl_done(daemon, "load", self.file, "--as", "model")
        ctl_done(daemon, "load", self.file, "--as", "coded")
        ctl_done(daemon, "compress", "model:coded", "--codec", "int8")
        self.standing = {row["name"] for row in daemon.rpc("hbm.ls")}
        self.on_device = {row["name"] for row in daemon.rpc("hbm.ls") if row["tier"] == "device"}
        self.hashes = hash_of(daemon, "*")

    def rpc(self, method, params=None):
        """By one connection that stays, so that the owner's descriptors can be counted."""
        try:
            if not self.operator:
                self.operator = self.daemon.operator(PATIENCE)
            return self.operator.rpc(method, params)
        except (OSError, ConnectionError):
            self.operator = None
            raise

    def serving(self):
        return self.rpc("hbm.devices")[0]

    def books(self):
        buffers, models, devices, status = (self.rpc(method) for method in ("hbm.ls", "hbm.models", "hbm.devices", "hbm.status"))
        workers = [device["worker_pid"] for device in devices]
        return {
            "rows": {row["name"]: [row[key] for key in ("id", "tier", "version", "encoding", "size", "keep", "leases")] for row in buffers},
            "models": {row["name"]: [row[key] for key in ("id", "state", "bytes_by_tier", "leases")] for row in models},
            # A GPU's host tier keeps what was let go of for a while.
            "used": [[row["tier"], row["used"]] for device in devices for row in device["tiers"] if row["tier"] != "host" or DEVICE == "host"],
            "counts": {key: status[key] for key in ("sessions", "leases", "quarantined", "ops", "buffers", "models")},
            # A GPU's worker opens and drops its context as it likes, and its owner keeps pinned memory for a while.
            "fds": [files_of(pid) for pid in [self.daemon.process.pid] + [status["pid"], *workers] * (DEVICE == "host")],
        }

    def at_rest(self):
        """The books once nothing changes them any more: a socket with fds in it outlives its link by 200 ms."""
        books, same = self.books(), 0
        while same < 25:
            time.sleep(0.01)
            last, books = books, self.books()
            same = same + 1 if books == last else 0
        return books

    def seen(self, user, *words):
        """What the client program reads or writes through its pointers; on a GPU it has no business there."""
        return user.ask(*words) if DEVICE == "host" else []

    def program(self):
        """The client of this world, with an open session."""
        if not self.user or self.user.process.poll() is not None:
            with self.injector.preloaded():
                self.user = PatientProgram(self.client_path, self.daemon)
            self.user.ask("open", 0)
            self.user.ask("close")
            self.user.fds = fds_of(self.user.process.pid)
        return self.user

    def ctl(self, *args, watched=False):
        """hbmctl, which may be meant: its output, or CtlFailed. Watched: what it has to say goes to a terminal."""
        terminal, stderr = os.openpty() if watched else (None, subprocess.PIPE)
        with self.injector.preloaded():
            try:
                result = self.daemon.ctl(*args, timeout=PATIENCE, stderr=stderr)
            except subprocess.TimeoutExpired as error:
                raise Broken(f"hbmctl hangs: {args}") from error
            finally:
                words = read_terminal(terminal, stderr) if watched else ""
        words = words if watched else result.stderr.strip()
        if result.returncode < 0 or "Sanitizer" in words or "runtime error" in words:
            raise Broken(f"hbmctl {args}: {result.returncode}\n{words}")
        if result.returncode:
            if not words:
                raise Broken(f"hbmctl {args} ended with {result.returncode} and said nothing")
            raise CtlFailed(words)
        return result.stdout

    # ---- After a failure ----

    def wait_for(self, condition, what, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except (OSError, ConnectionError, RpcError) as error:
                if time.monotonic() > deadline:
                    raise Broken(f"{what}: {error!r}") from error
            if time.monotonic() > deadline:
                raise Broken(what)
            time.sleep(0.005)

    def at_last(self, call):
        """What call gives, tried until it succeeds: a worker that an error of the driver has spoilt may be about to end."""
        results = []
        self.wait_for(lambda: results.append(call()) or True, "it still fails without a failure")
        return results[0]

    def close_user(self):
        """The session ends, and leaves the client as it was before it."""
        user = self.user
        if not user:
            return
        if user.process.poll() is not None:
            self.user = None
            if user.process.returncode != -9:
                raise Broken(f"the client ended with {user.process.returncode}\n{user.process.stderr.read()}")
            return
        user.ask("close")
        maps = pathlib.Path(f"/proc/{user.process.pid}/maps").read_text(encoding="ascii").count("/memfd:")
        fds = fds_of(user.process.pid)
        if maps or DEVICE == "host" and fds != user.fds:  # the driver keeps its own
            raise Broken(f"the client keeps {maps} mappings and {fds - user.fds} descriptors")

    def end_user(self):
        if self.user:
            user, self.user = self.user, None
            user.end()

    def part(self):
        """Nobody uses anything any more, and there is a worker."""
        self.close_user()
        self.wait_for(lambda: self.serving()["state"] == "ready", "no worker comes back")
        try:
            self.wait_for(self.settled, "", 0.1)
        except Broken:
            self.end_user()  # a session whose link was lost is held for as long as its process could write
            self.wait_for(self.settled, "sessions or operations do not end")

    def clean(self):
        """Takes away what the flow made."""
        self.part()
        for row in self.rpc("hbm.models"):
            if row["name"] not in ("model", "coded"):
                self.rpc("hbm.rm", {"model": row["name"]})
        for row in self.rpc("hbm.ls"):
            if row["name"] not in self.standing:
                self.rpc("hbm.free", {"sel": "id:" + row["id"]})

    def settled(self):
        status = self.rpc("hbm.status")
        return not (status["sessions"] or status["leases"] or status["quarantined"] or status["ops"])

    def check(self):
        """The books as they were, every byte too."""
        last = {}

        def same():
            last.update(self.books())
            return last == self.before

        try:
            self.wait_for(same, "the books do not balance", 5)
        except Broken as error:
            wrong = {key: (self.before[key], last.get(key)) for key in self.before if last.get(key) != self.before[key]}
            raise Broken(f"{error}: (before, now) {wrong}") from error
        self.wait_for(lambda: hash_of(self, "*") == self.hashes, "bytes have changed", 5)
        self.daemon.check()
        self.worn |= self.serving()["worker_restarts"] > 3

    def close(self):
        self.end_user()
        self.daemon.close()
