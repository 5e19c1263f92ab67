"""What is flat after ten thousand cycles, and what an idle owner costs (CASES 22, 23; FAULTS 19, 34)."""
import os
import re
import time

import pytest

from conftest import Daemon
from helpers import MIB, Client, client_program, ctl_done, fails, fds_of, module_daemon, program, put, sanitizer_flags, shared, used

CYCLES = 10000


def field(pid, name, file="status"):
    with open(f"/proc/{pid}/{file}", encoding="ascii") as status:
        return int(re.search(rf"^{name}:\s+(\d+)", status.read(), re.M)[1])


def is_sanitized():
    """A sanitizer keeps what was freed, and its threads wake up."""
    return bool(sanitizer_flags())


def test_ten_thousand_attach_and_detach_cycles_under_64_fds_leave_fds_and_memory_flat(shared, program):
    """CASES 23."""
    put(shared, "w", b"w" * 100000)
    user = program(shared)
    user.ask("nofile", 64)
    user.ask("cycles", "w", 1)  # the daemon keeps one fd for all who read it
    fds, rss = fds_of(shared.process.pid), field(shared.process.pid, "VmRSS")
    before, after, warm_kib, end_kib = map(int, user.ask("cycles", "w", CYCLES))
    assert after == before
    assert end_kib - warm_kib < 1024 or is_sanitized()
    shared.wait_for(lambda: fds_of(shared.process.pid) <= fds)  # sockets of ended links stay for a moment
    assert field(shared.process.pid, "VmRSS") - rss < 4096 or is_sanitized()
    assert used(shared) >= 100000


def test_a_client_without_a_free_fd_is_told_so_and_keeps_its_session(shared, program):
    """FAULTS 19, 8: RLIMIT_NOFILE of the client."""
    put(shared, "w", b"w" * 4096)
    user = program(shared)
    user.ask("nofile", int(user.ask("fds")[0]))
    with fails("SYSTEM"):
        user.ask("attach", "w", "ro", 0, 1000)
    assert user.process.poll() is None
    assert len(shared.rpc("hbm.sessions")) == 1


def test_a_thousand_sessions_one_after_the_other_leave_the_daemon_flat(shared):
    """FAULTS 34."""
    def cycle():
        with Client(shared.socket) as link:
            link.hello()
            _, fd = link.alloc(4096)
            if fd is not None:
                os.close(fd)

    for _ in range(100):
        cycle()
    fds, rss = fds_of(shared.process.pid), field(shared.process.pid, "VmRSS")
    for _ in range(1000):
        cycle()
    shared.wait_for(lambda: fds_of(shared.process.pid) <= fds)
    assert field(shared.process.pid, "VmRSS") - rss < 2048 or is_sanitized()


def test_an_fd_that_was_sent_is_closed_once_by_one_owner(shared):
    """CASES 22: other files opened meanwhile stay open."""
    with Client(shared.socket) as link:
        link.hello()
        for _ in range(50):
            grant, fd = link.alloc(4096)
            if fd is not None:
                os.close(fd)
            others = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
            link.call("detach", lease=grant["lease"])
            for other in others:
                os.close(other)


@pytest.fixture(scope="module")
def idle():
    daemon = Daemon().start()
    yield daemon
    daemon.close()


def test_an_idle_owner_is_small_and_sleeps(idle, program):
    """Less than 20 MB resident; no wake-ups, also with a client attached that does nothing."""
    put(idle, "w", b"w" * MIB)
    user = program(idle)
    user.attach("w")
    pid = idle.process.pid
    assert field(pid, "VmRSS") < 20000 or is_sanitized()
    time.sleep(1.5)  # accounts are swept a second after they were used last

    def wakeups():
        return {task: (field(pid, "voluntary_ctxt_switches", f"task/{task}/status"), field(pid, "nonvoluntary_ctxt_switches", f"task/{task}/status"))
                for task in os.listdir(f"/proc/{pid}/task")}

    before = wakeups()
    time.sleep(2)
    if not is_sanitized():
        assert wakeups() == before
    user.end()
    ctl_done(idle, "free", "w")


def test_nothing_is_left_behind_after_a_stop(make_daemon):
    daemon = make_daemon().start()
    put(daemon, "w", b"w" * MIB)
    ctl_done(daemon, "offload", "w", "--to", "disk")
    worker = daemon.rpc("hbm.devices")[0]["worker_pid"]
    assert daemon.stop() == 0
    daemon.wait_for(lambda: not os.path.exists(f"/proc/{worker}/exe") or not os.path.exists(f"/proc/{worker}"))
    assert list(daemon.state_dir.iterdir()) == []
