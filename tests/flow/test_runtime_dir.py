"""The runtime directory: who else is there, and whose it is (FAULTS 29; CASES 12, 13)."""
import fcntl
import os
import pickle
import socket
import stat
import subprocess
import threading

import pytest

from conftest import BUILD, DEVICE
from helpers import OTHER, connect, ctl_refused, hash_of, module_daemon, put, root_only, serves, shared


def run(daemon, *more, **how):
    """hbmd beside that daemon's directories, to its end."""
    command = [str(BUILD / "hbmd"), "--device", DEVICE, "--runtime-dir", str(daemon.runtime_dir), "--state-dir", str(daemon.state_dir), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, **how)


def refuses(result, *words):
    assert result.returncode != 0 and all(word in result.stderr for word in words), (result.returncode, result.stderr)


@pytest.fixture
def stopped(make_daemon):
    daemon = make_daemon()
    yield daemon


@pytest.mark.parametrize("more", [[], ["--supervise"]], ids=["plain", "supervised"])
def test_a_second_daemon_on_the_same_directory_is_refused_and_harms_nothing(shared, more):
    """FAULTS 29, CASES 12."""
    put(shared, "w", b"w" * 5000)
    before = [os.stat(path) for path in (shared.socket, shared.control, shared.runtime_dir / "ledger")]
    hashes = hash_of(shared, "w")
    refuses(run(shared, *more), "another hbmd", str(shared.runtime_dir))
    after = [os.stat(path) for path in (shared.socket, shared.control, shared.runtime_dir / "ledger")]
    assert [(entry.st_ino, entry.st_size) for entry in before] == [(entry.st_ino, entry.st_size) for entry in after]
    assert hash_of(shared, "w") == hashes and serves(shared)


def test_a_daemon_waits_a_moment_for_the_lock_of_one_that_was_killed(make_daemon):
    """FAULTS 29: a worker that had not come to its exec yet when the owner died still has a copy of the lock."""
    daemon = make_daemon()
    daemon.runtime_dir.mkdir(mode=0o755)
    lock = os.open(daemon.runtime_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    release = threading.Timer(0.4, os.close, [lock])
    release.start()
    daemon.start()
    release.join()
    assert serves(daemon)


def test_a_stale_socket_of_ours_is_replaced(make_daemon):
    """FAULTS 29."""
    daemon = make_daemon()
    daemon.runtime_dir.mkdir(mode=0o755)
    for path, kind in ((daemon.socket, socket.SOCK_SEQPACKET), (daemon.control, socket.SOCK_STREAM)):
        stale = socket.socket(socket.AF_UNIX, kind)
        stale.bind(str(path))
        stale.close()
    daemon.start()
    assert serves(daemon)


def plant(path, what, home):
    if what == "a file":
        path.write_text("precious")
    elif what == "a symlink to a file":
        (home / "precious").write_text("precious")
        path.symlink_to(home / "precious")
    elif what == "a dangling symlink":
        path.symlink_to(home / "nowhere")
    elif what == "a directory":
        path.mkdir()
    elif what == "a fifo":
        os.mkfifo(path)
    elif what == "a socket of another user":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trap:
            trap.bind(str(path))
        os.chown(path, OTHER, OTHER)


PLANTS = ["a file", "a symlink to a file", "a dangling symlink", "a directory", "a fifo"]


@pytest.mark.parametrize("name", ["hbmd.sock", "control.sock"])
@pytest.mark.parametrize("what", PLANTS + ([pytest.param("a socket of another user", marks=root_only)] if os.geteuid() == 0 else []))
def test_what_was_planted_at_a_sockets_path_is_refused_and_left(stopped, what, name):
    """FAULTS 29, CASES 13."""
    stopped.runtime_dir.mkdir(mode=0o755)
    plant(stopped.runtime_dir / name, what, stopped.home)
    before = os.lstat(stopped.runtime_dir / name)
    refuses(run(stopped), name)
    assert os.lstat(stopped.runtime_dir / name).st_ino == before.st_ino
    if what == "a symlink to a file":
        assert (stopped.home / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["lock", "ledger"])
@pytest.mark.parametrize("what", ["a symlink to a file", "a directory"])
def test_what_was_planted_at_the_lock_or_the_ledger_is_refused_and_left(stopped, what, name):
    """FAULTS 29, CASES 13."""
    stopped.runtime_dir.mkdir(mode=0o755)
    plant(stopped.runtime_dir / name, what, stopped.home)
    refuses(run(stopped), name)
    if what == "a symlink to a file":
        assert (stopped.home / "precious").read_text() == "precious"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757], ids=oct)
@pytest.mark.parametrize("which", ["runtime_dir", "state_dir"])
def test_a_directory_that_others_may_write_is_refused(stopped, which, mode):
    """FAULTS 29."""
    path = getattr(stopped, which)
    path.mkdir()
    path.chmod(mode)
    refuses(run(stopped), str(path), "mode")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@root_only
@pytest.mark.parametrize("which", ["runtime_dir", "state_dir"])
def test_a_directory_of_another_user_is_refused(stopped, which):
    """FAULTS 29."""
    path = getattr(stopped, which)
    path.mkdir(mode=0o755)
    os.chown(path, OTHER, OTHER)
    refuses(run(stopped), str(path), str(OTHER))


@pytest.mark.parametrize("which", ["runtime_dir", "state_dir"])
def test_a_directory_that_is_a_link_is_refused(stopped, which):
    """FAULTS 29."""
    (stopped.home / "elsewhere").mkdir()
    getattr(stopped, which).symlink_to(stopped.home / "elsewhere")
    refuses(run(stopped), "link")
    assert list((stopped.home / "elsewhere").iterdir()) == []


def test_a_directory_that_cannot_be_made_is_a_clear_error(stopped):
    stopped.runtime_dir = stopped.home / "not" / "there"
    refuses(run(stopped), str(stopped.runtime_dir))


@root_only
def test_without_a_place_for_the_sockets_it_says_which_to_name(stopped):
    command = [str(BUILD / "hbmd"), "--device", "host"]
    environment = {"PATH": os.environ["PATH"], **{k: v for k, v in os.environ.items() if k.endswith("_OPTIONS")}}
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, user=OTHER, env=environment)
    refuses(result, "--runtime-dir")


def test_the_sockets_and_files_are_for_their_owner(shared):
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in shared.runtime_dir.iterdir()}
    assert modes["ledger"] == modes["lock"] == modes["devices"] == 0o600
    assert all(modes[name] in (0o600, 0o660) for name in ("hbmd.sock", "control.sock"))
    assert stat.S_IMODE(shared.runtime_dir.stat().st_mode) == 0o755 and stat.S_IMODE(shared.state_dir.stat().st_mode) == 0o700


def test_a_pickled_object_on_either_socket_is_never_executed(shared):
    """CASES 13."""
    proof = shared.home / "executed"

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {proof}",)

    data = pickle.dumps(Payload())
    for path, kind in ((shared.socket, socket.SOCK_SEQPACKET), (shared.control, socket.SOCK_STREAM)):
        with connect(path, kind) as link:
            link.send(data + b"\n")
            link.recv(4096)
    assert serves(shared) and not proof.exists()


def test_a_runtime_directory_that_no_socket_address_can_hold_is_named_as_too_long(stopped):
    stopped.runtime_dir = stopped.home / ("d" * 70) / ("e" * 70)
    stopped.runtime_dir.mkdir(parents=True)
    ctl_refused(stopped.ctl("status"), 1, "too long")
    refuses(run(stopped), "too long")


@pytest.mark.parametrize("supervise", [False, True], ids=["plain", "supervised"])
def test_a_daemon_that_stops_takes_its_sockets_along(make_daemon, supervise):
    daemon = make_daemon(supervise=supervise)
    daemon.start()
    assert daemon.socket.exists() and daemon.control.exists()
    daemon.stop()
    assert [path.name for path in daemon.runtime_dir.iterdir()] == ["lock"]
    ctl_refused(daemon.ctl("status"), 3)


@pytest.mark.parametrize("supervise", [False, True], ids=["plain", "supervised"])
def test_what_a_stop_gave_back_is_no_loss_to_the_next_daemon(make_daemon, supervise):
    daemon = make_daemon(supervise=supervise)
    daemon.start()
    put(daemon, "w", b"w" * 5000)
    daemon.stop()
    daemon.start()
    assert daemon.rpc("hbm.ls") == [] and "LOST" not in daemon.log
    put(daemon, "w", b"w" * 5000)
