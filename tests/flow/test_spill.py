"""Spill files are encrypted with a key that is kept beside them, in memory alone: what is on the disk says nothing, the
key outlives the daemon, and without it the contents are LOST by name and never wrong."""
import array
import os
import select
import signal
import socket
import subprocess
import threading

import pytest

from helpers import MIB, ctl_done, ctl_refused, events, get, hash_of, put, spill_fds, tier_of, used

RUN = b"sixteen bytes..."  # what the cipher works on at a time
DATA = RUN * (2 * MIB // len(RUN))


def raw(daemon):
    [spill] = spill_fds(daemon)
    with open(spill, "rb") as file:
        return file.read()


def test_what_is_spilled_to_disk_leaves_no_run_of_it_there(make_daemon):
    daemon = make_daemon(supervise=True).start()
    put(daemon, "secret", DATA)
    before = hash_of(daemon, "secret")
    ctl_done(daemon, "offload", "secret", "--to", "disk")
    on_disk = raw(daemon)
    assert len(on_disk) == len(DATA) and RUN not in on_disk and len(set(on_disk[:4096])) > 200
    assert hash_of(daemon, "secret") == before and get(daemon, "secret") == DATA
    # The key outlives the owner, and any worker.
    for find in (owner, worker, owner):
        gone = find(daemon)
        os.kill(gone, signal.SIGKILL)
        daemon.wait_for(lambda gone=gone: is_back(daemon, gone), 20)
        assert raw(daemon) == on_disk and get(daemon, "secret") == DATA
    ctl_done(daemon, "restore", "secret")
    assert hash_of(daemon, "secret") == before and tier_of(daemon, "secret") == "device"


def owner(daemon):
    return daemon.pid


def worker(daemon):
    return daemon.rpc("hbm.devices")[0]["worker_pid"]


def is_back(daemon, gone):
    try:
        return gone not in (owner(daemon), worker(daemon)) and daemon.rpc("hbm.devices")[0]["state"] == "ready"
    except (OSError, ConnectionError):
        return False


def test_without_encryption_spill_files_are_plain_and_both_kinds_are_read(make_daemon):
    """The switch is for new files: each is known by how it was written."""
    daemon = make_daemon(supervise=True, config="spill_encryption = no\n").start()
    put(daemon, "plain", DATA)
    ctl_done(daemon, "offload", "plain", "--to", "disk")
    assert raw(daemon) == DATA
    (daemon.home / "hbmd.conf").write_text("spill_encryption = yes\n")
    restart(daemon)
    put(daemon, "secret", DATA)
    ctl_done(daemon, "offload", "secret", "--to", "disk")
    (daemon.home / "hbmd.conf").write_text("spill_encryption = no\n")
    restart(daemon)
    for name in ("plain", "secret"):
        assert get(daemon, name) == DATA
        ctl_done(daemon, "restore", name)
        assert get(daemon, name) == DATA
    ctl_done(daemon, "offload", "secret", "--to", "disk")
    assert raw(daemon) == DATA


def restart(daemon):
    gone = daemon.kill9()
    daemon.wait_for(lambda: is_back(daemon, gone), 20)


# ---- A keeper that loses what it is told to ----

class Keeper:
    """Keeps a daemon's fds as its service manager does, and starts it again with those of them that a test lets it have."""

    def __init__(self, daemon):
        self.daemon, self.fds = daemon, {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(daemon.home / "notify"))
        self.end, self.stopped = os.pipe()
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        while self.end not in select.select([self.socket, self.end], [], [])[0]:
            text, control, _, _ = self.socket.recvmsg(65536, 16384, socket.MSG_CMSG_CLOEXEC)
            words = dict(line.partition("=")[::2] for line in text.decode().splitlines())
            fds = array.array("i")
            for _, _, data in control:
                fds.frombytes(data)
            if words.get("FDSTOREREMOVE"):
                os.close(self.fds.pop(words["FDNAME"]))
            elif words.get("FDSTORE"):
                self.fds[words["FDNAME"]] = fds.pop()
            for fd in fds:  # a barrier's pipe among them: closing it is the answer
                os.close(fd)

    def lose(self, name):
        os.close(self.fds.pop(name))

    def start(self):
        """The daemon, with all that is kept."""
        names, high = list(self.fds), []
        for name in names:
            high.append(os.dup(self.fds[name]))
        command = ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *self.daemon.command()]
        environment = {**os.environ, "NOTIFY_SOCKET": str(self.daemon.home / "notify")}
        if names:
            environment |= {"LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)}

        def hand_over():
            moved = [os.dup2(fd, 1000 + i, inheritable=False) for i, fd in enumerate(high)]
            for i, fd in enumerate(moved):
                os.dup2(fd, 3 + i)

        with open(self.daemon.log_path, "ab") as log:
            self.daemon.process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, close_fds=False, preexec_fn=hand_over)
        for fd in high:
            os.close(fd)
        self.daemon.expect_death = False
        self.daemon.wait_ready()

    def close(self):
        os.close(self.stopped)
        self.thread.join()
        for fd in [*self.fds.values(), self.end]:
            os.close(fd)
        self.socket.close()


@pytest.fixture
def keeper(make_daemon):
    keeper = Keeper(make_daemon())
    keeper.start()
    yield keeper
    keeper.daemon.close()
    keeper.close()


def test_without_its_key_what_was_spilled_is_lost_by_name_and_the_rest_is_there(keeper):
    daemon = keeper.daemon
    put(daemon, "spilled", DATA)
    put(daemon, "resident", DATA[::-1])
    ctl_done(daemon, "offload", "spilled", "--to", "disk")
    daemon.kill9()
    keeper.start()
    assert get(daemon, "spilled") == DATA, "the keeper keeps"
    daemon.kill9()
    keeper.lose("k-spill")
    keeper.start()
    assert [event["name"] for event in events(daemon, "arena.lost")] == ["spilled"]
    assert "LOST: the contents of spilled" in daemon.log and "key" in daemon.log
    for command in (["restore", "spilled"], ["get", "spilled", daemon.home / "out"], ["hash", "spilled"]):
        ctl_refused(daemon.ctl(*command), 1, "spilled")
    assert not (daemon.home / "out").exists()
    assert get(daemon, "resident") == DATA[::-1]
    assert used(daemon, "disk") == 0 and not spill_fds(daemon)
    ctl_done(daemon, "free", "spilled")
    ctl_done(daemon, "offload", "resident", "--to", "disk")  # with a new key
    daemon.kill9()
    keeper.start()
    assert get(daemon, "resident") == DATA[::-1]


def test_a_key_that_comes_back_damaged_is_none(keeper):
    daemon = keeper.daemon
    put(daemon, "spilled", DATA)
    ctl_done(daemon, "offload", "spilled", "--to", "disk")
    daemon.kill9()
    keeper.lose("k-spill")
    keeper.fds["k-spill"] = os.memfd_create("noise")
    os.write(keeper.fds["k-spill"], os.urandom(72))
    keeper.start()
    assert "came back damaged" in daemon.log and "LOST: the contents of spilled" in daemon.log
    ctl_refused(daemon.ctl("restore", "spilled"), 1, "spilled")
