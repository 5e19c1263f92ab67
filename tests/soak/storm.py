"""The kill storm: clients that do everything at random (client.c), operators' verbs beside them, and SIGKILL or SIGSTOP
for clients, workers and the owner at random moments, also several at once and in the middle of a restart. Every byte
that anyone reads is checked when it is read; when the storm is over, everything else that can be counted is.

usage: storm.py [--seconds N] [--seed S] [--clients N]     HBM_BUILD, HBM_TEST_DEVICE as for the flows
"""
import argparse
import collections
import contextlib
import fcntl
import json
import mmap
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "flow"))
from conftest import BUILD, DEVICE, Daemon, RpcError  # pylint: disable=wrong-import-position
import driver_memory  # pylint: disable=wrong-import-position
from helpers import ERROR_NAMES, ctl_done, layers, put, safetensors, settled, sweep, used  # pylint: disable=wrong-import-position

CONFIG = """
device_bytes = {device}
host_bytes = {host}
disk_bytes = {host}
reclaim_seconds = 1
offload_limit = 60
device_high = 90
device_low = 70
host_high = 90
worker_idle_seconds = 2
"""
SIZES = {"host": {"device": "40MiB", "host": "32MiB"}, "cuda": {"device": "512MiB", "host": "384MiB"}}
# Seconds between two blows; a process that uses CUDA takes longer to get to work again.
PAUSES = {"host": (0.02, 0.5), "cuda": (0.1, 1.5)}
SETTLE_SECONDS = 60
LEAST_BUFFER = 2 << 20  # of a GPU's memory
GONE = 0xffffffff
# What hbmctl may be told while owners and workers die, and clients hold things.
EXPLAINED = {"RETRY", "DISCONNECTED", "NO_DAEMON", "WORKER_DIED", "BUSY", "LIMIT", "NO_MEMORY", "TIMEOUT", "CANCELLED", "EXISTS",
             "NOT_READY", "BUILDER_DIED", "OFFLOAD_LIMIT"}


class Results:
    def __init__(self):
        self.failed = 0

    def check(self, good, sentence, because=""):
        print(f"ok - {sentence}" if good else f"FAIL - {sentence}{': ' if because else ''}{because}", flush=True)
        self.failed += not good
        return good


def note(text):
    print(f"# {text}", flush=True)


class Truth:
    """truth.h's page, by the offsets that the client program tells."""

    def __init__(self, client, path):
        self.layout = json.loads(subprocess.run([client, "layout"], capture_output=True, check=True).stdout)
        with open(path, "wb") as file:
            file.truncate(self.layout["size"])
        self.file = open(path, "r+b")  # pylint: disable=consider-using-with
        self.page = mmap.mmap(self.file.fileno(), self.layout["size"])

    def read(self, offset, kind="=I"):
        return struct.unpack_from(kind, self.page, offset)[0]

    def write(self, offset, value):
        struct.pack_into("=I", self.page, offset, value)

    def count(self, field):
        return self.read(self.layout[field], "=Q")

    def errors(self):
        counts = {name: self.read(self.layout["errors"] + 8 * -number, "=Q") for number, name in ERROR_NAMES.items()}
        return {name: count for name, count in counts.items() if count}

    def release(self, pid):
        """That process is gone, and its session with it: whoever wants may look at what it was about to change."""
        for offset in self.layout["by"]:
            if self.read(offset) == pid:
                self.write(offset, 0)

    @contextlib.contextmanager
    def own_model(self, m):
        """Its offsets, with nobody else reading or changing it; None if somebody is."""
        row = self.layout["models"][m]
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row["row"])
        except OSError:
            yield None
            return
        try:
            yield None if self.read(row["by"]) else row
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN, 1, row["row"])


def children(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]


def blow(pid, number):
    """False if it is gone already."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


class Client:
    def __init__(self, storm, index):
        self.log = open(storm.home / f"client{index}.log", "ab")  # pylint: disable=consider-using-with
        self.storm, self.index = storm, index
        self.process, self.births = None, 0

    def lives(self):
        return self.process is not None and self.process.poll() is None

    def start(self):
        seed = self.storm.seed * 1000003 + self.index * 1009 + self.births
        self.births += 1
        self.process = subprocess.Popen(
            [self.storm.client, self.storm.daemon.runtime_dir, self.storm.truth_path, DEVICE, str(seed)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)


class Operator(threading.Thread):
    """hbmctl beside the clients, one verb after the other: a file is loaded and saved, models sleep, wake and are removed."""

    def __init__(self, storm):
        super().__init__()
        self.storm, self.dice = storm, random.Random(storm.seed + 1)
        self.path, self.loaded = None, False
        self.done, self.errors, self.wrong = 0, collections.Counter(), []

    def ctl(self, *words, also=(), mortal=False):
        """True: done. None: nobody can tell. A mortal one may be killed."""
        command = [str(BUILD / "hbmctl"), "--runtime-dir", str(self.storm.daemon.runtime_dir), "--json", *map(str, words)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            if mortal and self.dice.random() < 0.2:
                time.sleep(self.dice.uniform(0, 0.2))
                process.kill()
            out, errors = process.communicate()
        self.done += 1
        if process.returncode == -signal.SIGKILL:
            self.storm.blows["hbmctl killed"] += 1
            return None
        if process.returncode == 0:
            return True
        try:
            name = json.loads(out.splitlines()[-1])
            name = name["error"] if isinstance(name, dict) else next(row["error"] for row in name if row.get("error"))
        except (ValueError, IndexError, KeyError, TypeError, StopIteration):
            name = f"status {process.returncode}"
        self.errors[name] += 1
        if name not in EXPLAINED and name not in also:
            self.wrong.append(f"hbmctl {' '.join(map(str, words))}: {name}: {out[-300:]} {errors[-300:]}")
        return None if name in ("RETRY", "DISCONNECTED") else False

    def load(self):
        """What is loaded once stays, and is the file byte for byte."""
        if not self.loaded:
            tensors = layers(3, self.dice.randrange(1, 20000), self.dice.randrange(1000))
            self.path = safetensors(self.storm.home / "in.safetensors", tensors, {"format": "pt"})
        self.loaded |= bool(self.ctl("load", self.path, "--as", "f", *["--replace"] * self.dice.randrange(2), mortal=True))

    def save(self):
        out = self.storm.home / "out.safetensors"
        if self.loaded and self.ctl("save", "f", out, mortal=True) and out.read_bytes() != self.path.read_bytes():
            self.wrong.append("a saved model is not the file that it was loaded from")

    def unload(self):
        """Not known to be gone, it is loaded again in any case."""
        if self.loaded and self.ctl("rm", "f", also=("NOT_FOUND",)) is not False:
            self.loaded = False

    def move(self):
        model = self.dice.choice(["f", "m0", "m1", "m2"])
        words = self.dice.choice([["sleep", model, "--to", "host"], ["sleep", model, "--to", "disk"], ["wake", model]])
        self.ctl(*words, also=("NOT_FOUND", "STALE"))

    def prefer(self):
        words = ["priority", self.dice.choice(["*", "model:f", "m0/*", "m1/*"]), self.dice.choice("0123456789")]
        self.ctl(*words, also=("NOT_FOUND", "STALE"))

    def ask(self):
        words = self.dice.choice([["hash", "*"], ["ls"], ["ops"], ["models"], ["sessions"], ["status"], ["show", "*"], ["events"],
                                  ["observe", "*"], ["observe", "*", "--forget"]])
        self.ctl(*words, also=("NOT_FOUND", "STALE", "UNSUPPORTED"))

    def remove(self):
        with self.storm.truth.own_model(self.dice.randrange(3)) as row:
            if row is None or not self.storm.truth.read(row["sealed"]) or self.storm.truth.read(row["next"]):
                return
            self.storm.truth.write(row["next"], GONE)
            done = self.ctl("rm", row["name"])
            if done:
                self.storm.truth.write(row["sealed"], 0)
            if done is not None:  # else the next one who has it to himself looks
                self.storm.truth.write(row["next"], 0)

    def run(self):
        acts = [self.load] * 3 + [self.save] * 3 + [self.unload] + [self.move] * 3 + [self.prefer] + [self.ask] * 3 + [self.remove] * 2
        while not self.storm.over.wait(self.dice.uniform(0, 0.3)):
            try:
                self.dice.choice(acts)()
            except Exception as error:  # pylint: disable=broad-except
                self.wrong.append(f"{type(error).__name__}: {error}")


class Storm:
    def __init__(self, seed, n_clients):
        self.seed, self.dice = seed, random.Random(seed)
        self.daemon = Daemon(supervise=True, config=CONFIG.format(**SIZES[DEVICE]))
        self.home = self.daemon.home
        self.client = str(BUILD / "soak" / "client")
        self.truth_path = str(self.home / "truth")
        self.truth = Truth(self.client, self.truth_path)
        self.clients = [Client(self, i) for i in range(n_clients)]
        self.blows = collections.Counter()
        self.dead = set()    # clients whose session may still be there
        self.resting = {}    # stopped: pid -> when it goes on
        self.over = threading.Event()
        self.wrong = []

    # ---- Who is there ----

    def owner(self):
        return next(iter(children(self.daemon.process.pid)), 0)

    def workers(self):
        return children(self.owner())

    def fds(self):
        """Of supervisor, owner and workers: how many of each kind."""
        counts = {}
        for who, pid in [("supervisor", self.daemon.process.pid), ("owner", self.owner())] + [("worker", pid) for pid in self.workers()]:
            kinds = collections.Counter()
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    kinds[re.sub(r"(:\[).*|0x.*|[0-9]+", "", os.readlink(f"/proc/{pid}/fd/{fd}"))] += 1
            counts[who] = dict(kinds)
        return counts

    def files(self):
        return sorted(str(path.relative_to(self.home)) for folder in (self.daemon.runtime_dir, self.daemon.state_dir)
                      for path in folder.rglob("*"))

    def processes(self):
        """All that were started from here and live, but for this one."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
                if f"HBM_SOAK={self.home}".encode() in environ and int(pid) != os.getpid():
                    found.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        return [command for command in found if command]

    # ---- The storm ----

    def targets(self):
        kind = self.dice.choices(["client", "worker", "owner"], [5, 2, 2])[0]
        if kind == "client":
            client = self.dice.choice(self.clients)
            return kind, [client.process.pid] if client.lives() else []
        return kind, [self.owner()] if kind == "owner" else self.workers()

    def strike(self):
        kind, pids = self.targets()
        number = signal.SIGSTOP if self.dice.random() < 0.15 else signal.SIGKILL
        for pid in filter(None, pids):
            if pid not in self.resting and blow(pid, number):
                self.blows[f"{kind} {'stopped' if number == signal.SIGSTOP else 'killed'}"] += 1
                if number == signal.SIGSTOP:
                    self.resting[pid] = time.monotonic() + self.dice.uniform(0.05, 1)

    def strike_again(self):
        """The owner, and the one that takes its place before it has found its feet."""
        old = self.owner()
        if not old or not blow(old, signal.SIGKILL):
            return
        self.blows["owner killed"] += 1
        deadline = time.monotonic() + 1
        while self.owner() in (0, old) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(self.dice.uniform(0, 0.1))
        young = self.owner()
        if young not in (0, old) and blow(young, signal.SIGKILL):
            self.blows["owner killed while it started"] += 1

    def wake(self, everyone=False):
        for pid, at in list(self.resting.items()):
            if everyone or time.monotonic() >= at:
                blow(pid, signal.SIGCONT)
                del self.resting[pid]

    def tend(self, restart=True):
        """Clients that were killed start again; one that ended otherwise has found something."""
        for client in self.clients:
            if client.lives():
                continue
            if client.process:
                self.dead.add(client.process.pid)
                status, client.process = client.process.returncode, None
                if status != -signal.SIGKILL and (status or restart):
                    self.wrong.append(f"client {client.index} ended with {status}")
            if restart and not self.wrong:
                client.start()

    def bury(self):
        """Runs beside the storm: what dead clients were changing is free once the daemon has released their sessions."""
        while not (self.over.wait(0.05) and not self.dead):
            dead = list(self.dead)
            if not dead:
                continue
            try:
                with self.daemon.operator(timeout=3) as operator:
                    left = {row["pid"] for row in operator.rpc("hbm.sessions")}
            except (OSError, ConnectionError, RpcError, ValueError):
                continue
            for pid in dead:
                if pid not in left:
                    self.truth.release(pid)
                    self.dead.discard(pid)

    def rage(self, seconds):
        end = time.monotonic() + seconds
        at = time.monotonic() + 0.5
        for client in self.clients:
            client.start()
        while time.monotonic() < end and not self.wrong:
            self.wake()
            self.tend()
            if time.monotonic() < at:
                time.sleep(0.005)
                continue
            at = time.monotonic() + self.dice.uniform(*PAUSES[DEVICE])
            for _ in range(self.dice.choices([1, 2, 4], [8, 2, 1])[0]):
                self.strike()
            if self.dice.random() < 0.05:
                self.strike_again()

    def calm(self):
        """Nobody is struck any more, and the clients end in good order."""
        self.truth.write(self.truth.layout["stop"], 1)
        self.wake(everyone=True)
        deadline = time.monotonic() + SETTLE_SECONDS
        while any(client.lives() for client in self.clients) and time.monotonic() < deadline:
            time.sleep(0.01)
        for client in filter(Client.lives, self.clients):
            self.wrong.append(f"client {client.index} has not ended after {SETTLE_SECONDS} s")
            client.process.kill()
            client.process.wait()
        self.tend(restart=False)

    # ---- Afterwards ----

    def reported(self):
        """The client program's word on everything that must be there: name -> hash."""
        result = subprocess.run([self.client, self.daemon.runtime_dir, self.truth_path, DEVICE, "report"], capture_output=True,
                                text=True, timeout=300, check=False)
        if result.returncode:
            self.wrong.append(f"the report ended with {result.returncode}: {result.stderr[-2000:]}")
        return dict(line.split() for line in result.stdout.splitlines())

    def memory(self):
        """Bytes in the files that the owner holds open, however often: shared memory, and spill files."""
        sizes, seen = collections.Counter(), set()
        for fd in os.listdir(f"/proc/{self.owner()}/fd"):
            path = f"/proc/{self.owner()}/fd/{fd}"
            with contextlib.suppress(OSError):  # a connection that ends meanwhile
                target, status = os.readlink(path), os.stat(path)
                kind = ("memory" if target.startswith("/memfd:hbm-extent") else
                        "disk" if target.startswith(str(self.daemon.state_dir)) else None)
                if kind and (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    sizes[kind] += status.st_size
        return sizes

    def close(self):
        self.over.set()
        for client in self.clients:
            if client.lives():
                client.process.kill()
                client.process.wait()
            client.log.close()


def more(now, before):
    """What somebody has open now and had not. An owner that found its devices in what was kept has fewer."""
    return {who: dict(left) for who in now if (left := collections.Counter(now[who]) - collections.Counter(before.get(who, {})))}


def our_own(fds):
    """Without the driver's files of a worker: how many it opens is its own affair, and device memory that one of
    ours held on to among them would be in its count, which is compared beside this."""
    return {who: {kind: n for kind, n in kinds.items() if who != "worker" or not kind.startswith("/dev/nvidia")} for who, kinds in fds.items()}


def grown(base):
    """Whether a buffer is still there beside the worker. What the driver keeps for a worker, page tables and such, is some
    64 KiB more in one that has done much."""
    return base["driver"] is not None and driver_memory.used() >= base["driver"] + LEAST_BUFFER


def exercise(daemon):
    """A worker has done each kind of job once, and rests. So has any that is compared with it."""
    put(daemon, "exercise", bytes(1 << 20))
    for words in (["offload", "exercise", "--to", "disk"], ["restore", "exercise"], ["hash", "exercise"], ["free", "exercise"]):
        ctl_done(daemon, *words)
    time.sleep(0.3 if DEVICE == "host" else 3)


def rest(storm):
    """A daemon whose owner and worker have been killed once, with nothing in it: what all shall look like again at the end."""
    storm.daemon.start()
    for pid in storm.workers() + [storm.owner()]:
        os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    storm.daemon.wait_ready()
    exercise(storm.daemon)


def look_at_contents(storm, results):
    truth = storm.reported()
    hashes = {}
    for name in sorted({"f/*"} | {name.split("/")[0] + ("/*" if "/" in name else "") for name in truth}):
        try:
            hashes.update({row["name"]: row["hash"] for row in storm.daemon.rpc("hbm.hash", {"sel": name})})
        except RpcError as error:
            if name != "f/*" or error.name != "NOT_FOUND":
                storm.wrong.append(f"hash of {name}: {error} {error.data}")
    theirs = {name: hash_ for name, hash_ in hashes.items() if not name.startswith("f/")}
    wrong = {name for name in truth.keys() | theirs.keys() if truth.get(name) != theirs.get(name, "").removeprefix("0x")}
    results.check(not wrong and not storm.wrong, f"the hashes of {len(truth)} kept buffers are those of what was written",
                  f"{sorted(wrong)} {storm.wrong}")


def look_at_books(storm, results, base):
    daemon = storm.daemon
    files = storm.memory()
    booked = {"memory": used(daemon) + used(daemon, "host"), "disk": used(daemon, "disk")}
    if DEVICE == "host":
        results.check(all(files[kind] == booked[kind] for kind in booked), f"the books equal the files that are there: {dict(booked)}", dict(files))
    try:
        sweep(daemon)
        left = ""
    except (AssertionError, RpcError) as error:
        left = f"{error!r} {daemon.rpc('hbm.status')} {daemon.rpc('hbm.ls')}"
    results.check(not left, "with everything freed no byte, buffer, lease, session or operation is left", left)
    exercise(daemon)
    deadline = time.monotonic() + (10 if DEVICE == "host" else 90)  # a GPU's host memory is kept for a minute
    while (more(our_own(fds := storm.fds()), base["fds"]) or grown(base)) and time.monotonic() < deadline:
        time.sleep(0.1)
    results.check(not more(our_own(fds), base["fds"]), "owner, supervisor and worker have no fds but what they had before: "
                  f"{ {who: sum(kinds.values()) for who, kinds in fds.items()} }", f"{fds} instead of {base['fds']}")
    if base["driver"] is not None:
        results.check(not grown(base), "what the driver counts beside a worker at rest has not grown by as much as the smallest buffer",
                      f"{base['driver']} {driver_memory.used()}")
    results.check(storm.files() == base["files"], "and the directories the files", f"{storm.files()} instead of {base['files']}")


def look_at_logs(storm, results):
    log = storm.daemon.log
    bad = re.findall(r".*(?:ERROR: \w+Sanitizer|runtime error:|the daemon died \((?:status|signal (?!9\b))|"
                     r"killed by signal (?!9\b)|ended with status|is lost|are lost).*", log)
    results.check(not bad, "no daemon or worker ended but by SIGKILL, and none lost anything", bad[:5])


def look_at_processes(storm, results):
    deadline = time.monotonic() + 10
    while storm.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    results.check(not storm.processes(), "no process is left", storm.processes())
    left = list(storm.daemon.state_dir.iterdir())
    results.check(not left, "no spill file is left", left)


def tell(storm, operator, seconds):
    truth = storm.truth
    note(f"seed {storm.seed}, {seconds:.0f} s, {len(storm.clients)} clients, device {DEVICE}")
    note("blows: " + ", ".join(f"{count} {kind}" for kind, count in sorted(storm.blows.items())))
    note(f"{truth.count('done')} calls of libhbm, {operator.done} of hbmctl; {truth.count('checked')} buffers read, "
         f"{truth.count('checked_bytes') >> 20} MiB, of which {truth.count('torn')} had lost their writer half-way")
    note(f"errors of libhbm: {truth.errors()}; of hbmctl: {dict(operator.errors)}")


def run(storm, seconds, results):
    operator = Operator(storm)
    undertaker = threading.Thread(target=storm.bury)
    before = driver_memory.used()
    rest(storm)
    base = {"fds": storm.fds(), "files": storm.files(), "driver": driver_memory.used()}
    operator.start()
    undertaker.start()
    started = time.monotonic()
    storm.rage(seconds)
    raged = time.monotonic() - started
    storm.calm()
    storm.over.set()
    operator.join()
    undertaker.join(SETTLE_SECONDS)
    storm.daemon.wait_ready()
    storm.daemon.wait_for(lambda: settled(storm.daemon), SETTLE_SECONDS)
    calmed = time.monotonic() - started - raged
    tell(storm, operator, seconds)
    results.check(not storm.wrong, "clients were told nothing but what a death explains, and read no byte that was wrong", storm.wrong)
    results.check(not operator.wrong, "and so were operators", operator.wrong[:5])
    look_at_contents(storm, results)
    look_at_books(storm, results, base)
    storm.daemon.stop()
    look_at_logs(storm, results)
    look_at_processes(storm, results)
    if before is not None:
        deadline = time.monotonic() + 20
        while driver_memory.used() != before and time.monotonic() < deadline:
            time.sleep(0.1)
        results.check(driver_memory.used() == before, "the driver has all its memory back, to the byte", f"{before} {driver_memory.used()}")
    note(f"all looked at {time.monotonic() - started - raged:.1f} s after the storm's end; it had taken {calmed:.1f} s to settle")


def show_logs(storm):
    for path in sorted(storm.home.glob("client*.log")) + [storm.daemon.log_path]:
        text = path.read_text(errors="replace")
        if text:
            print(f"---- {path.name}\n{text[-6000:]}")


def acquaint(options):
    """What the driver keeps for itself from its first use on is there before anything is counted."""
    storm = Storm(options.seed, options.clients)
    try:
        storm.daemon.start()
        for client in storm.clients:
            client.start()
        time.sleep(5)
    finally:
        storm.close()
        storm.daemon.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=6)
    options = parser.parse_args()
    results = Results()
    if DEVICE != "host":
        acquaint(options)
    storm = Storm(options.seed, options.clients)
    os.environ["HBM_SOAK"] = str(storm.home)
    try:
        run(storm, options.seconds, results)
    except Exception as error:  # pylint: disable=broad-except
        results.check(False, "the storm comes to its end", repr(error))
    finally:
        storm.close()
        if results.failed:
            show_logs(storm)
            note(f"again: make soak SECONDS={options.seconds:.0f} SEED={options.seed}")
        with contextlib.suppress(AssertionError):
            storm.daemon.close()
    return results.failed != 0


if __name__ == "__main__":
    sys.exit(main())
