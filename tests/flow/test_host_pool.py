"""Host memory that is made ahead: ready before the first offload, bounded, given back, and in nobody's way when somebody dies."""
import contextlib
import os
import signal

from helpers import MIB, Client, ctl_done, empty, get, host_only, put, settled, tier_of
from test_faults_worker import Faulty


SIZE = 4 * MIB
DATA = os.urandom(SIZE)
POOL = "host_pool_bytes = 64MiB\n"


def host_tier(daemon):
    return next(row for row in daemon.rpc("hbm.devices")[0]["tiers"] if row["tier"] == "host")


def ready(daemon):
    return host_tier(daemon)["ready"]


def becomes_ready(daemon, size):
    daemon.wait_for(lambda: ready(daemon) == size, 30)


def reload(daemon, config):
    (daemon.home / "hbmd.conf").write_text(config)
    os.kill(daemon.pid, signal.SIGHUP)


def host_charge(daemon):
    rows = {row["thing"]: row["used"] for row in daemon.rpc("hbm.accounts")[0]["things"]}
    return rows["host_bytes"]


def test_what_is_offloaded_first_finds_its_memory_ready_and_pays_from_then_on(make_daemon):
    daemon = make_daemon(config=POOL).start()
    put(daemon, "w", DATA)
    becomes_ready(daemon, SIZE)
    row = host_tier(daemon)
    assert row["used"] == row["pooled"] == SIZE and host_charge(daemon) == 0
    assert f"{SIZE // MIB}.0 MiB of host memory" in ctl_done(daemon, "devices")
    ctl_done(daemon, "offload", "w", "--to", "host")
    assert host_charge(daemon) == SIZE and ready(daemon) == 0 and get(daemon, "w") == DATA
    ctl_done(daemon, "restore", "w")
    assert get(daemon, "w") == DATA


@host_only
def test_its_pages_are_there_before_anybody_uses_them(make_daemon):
    daemon = make_daemon(config=POOL).start()
    put(daemon, "w", DATA)
    becomes_ready(daemon, SIZE)
    folder = f"/proc/{daemon.pid}/fd"
    extents = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "hbm-extent" in os.readlink(f"{folder}/{fd}"):
                extents.append(os.stat(f"{folder}/{fd}"))
    assert len({extent.st_ino for extent in extents}) == 2  # the buffer, and what is ready for it
    assert all(extent.st_blocks * 512 >= SIZE for extent in extents)


@host_only
def test_host_memory_as_a_device_has_none_unless_that_is_asked_for(make_daemon):
    daemon = make_daemon().start()
    put(daemon, "w", DATA)
    ctl_done(daemon, "offload", "w", "--to", "host")
    ctl_done(daemon, "restore", "w")
    assert ready(daemon) == 0 and empty(daemon, "host")
    assert "host_pool_bytes" in ctl_done(daemon, "config")


def test_no_more_than_the_cap_is_made_and_a_reload_changes_it(make_daemon):
    daemon = make_daemon(config=f"host_pool_bytes = {SIZE // MIB}MiB\n").start()
    for name in "abc":
        put(daemon, name, DATA)
    becomes_ready(daemon, SIZE)
    reload(daemon, "host_pool_bytes = 64MiB\n")
    becomes_ready(daemon, 3 * SIZE)
    reload(daemon, f"host_pool_bytes = {2 * SIZE // MIB}MiB\n")
    becomes_ready(daemon, 2 * SIZE)
    reload(daemon, "host_pool_bytes = 0\n")
    becomes_ready(daemon, 0)
    daemon.wait_for(lambda: host_tier(daemon)["used"] == 0)


def test_it_is_given_back_when_nothing_happens_on_the_device_and_made_again_when_something_does(make_daemon):
    daemon = make_daemon(config=POOL).start()
    put(daemon, "w", DATA)
    becomes_ready(daemon, SIZE)
    reload(daemon, POOL + "host_pool_idle_seconds = 0.1\n")
    becomes_ready(daemon, 0)
    daemon.wait_for(lambda: host_tier(daemon)["used"] == 0)
    reload(daemon, POOL + "host_pool_idle_seconds = 3600\n")
    becomes_ready(daemon, SIZE)


def test_what_needs_the_room_gets_it(make_daemon):
    daemon = make_daemon(config=POOL + f"host_bytes = {3 * SIZE // MIB}MiB\n").start()
    put(daemon, "small", DATA)
    put(daemon, "large", DATA * 3)
    becomes_ready(daemon, SIZE)  # for the other there is no room besides
    ctl_done(daemon, "offload", "large", "--to", "host")
    assert tier_of(daemon, "large") == "host" and get(daemon, "large") == DATA * 3
    assert ready(daemon) == 0


def test_a_killed_worker_takes_nothing_of_it(make_daemon):
    """FAULTS 24."""
    daemon = make_daemon(config=POOL).start()
    put(daemon, "w", DATA)
    becomes_ready(daemon, SIZE)
    os.kill(daemon.rpc("hbm.devices")[0]["worker_pid"], signal.SIGKILL)
    daemon.wait_for(lambda: daemon.rpc("hbm.devices")[0]["worker_restarts"] == 1)
    assert ready(daemon) == SIZE
    ctl_done(daemon, "offload", "w", "--to", "host")
    assert get(daemon, "w") == DATA


def test_a_worker_that_dies_making_it_harms_nobody_and_the_next_makes_it(make_daemon):
    """FAULTS 24."""
    faulty = Faulty("create:kill:2", lambda: make_daemon(config="host_pool_bytes = 0\n"))
    daemon = faulty.daemon
    put(daemon, "w", DATA)  # the first
    reload(daemon, POOL)
    daemon.wait_for(lambda: faulty.restarts() == 1)
    becomes_ready(daemon, SIZE)
    row = host_tier(daemon)
    assert row["used"] == row["pooled"] == SIZE and get(daemon, "w") == DATA


def test_a_daemon_killed_at_any_time_comes_back_without_it_and_makes_it_anew(make_daemon):
    daemon = make_daemon(supervise=True, config=POOL).start()
    put(daemon, "w", DATA)
    daemon.kill9()
    daemon.wait_ready()
    becomes_ready(daemon, SIZE)
    daemon.kill9()
    daemon.wait_ready()
    becomes_ready(daemon, SIZE)
    row = host_tier(daemon)
    assert row["used"] == row["pooled"] == SIZE and get(daemon, "w") == DATA
    ctl_done(daemon, "offload", "w", "--to", "host")
    assert get(daemon, "w") == DATA and host_charge(daemon) == SIZE


def test_what_was_ready_for_a_client_that_has_gone_stays_a_minute_for_whoever_comes(make_daemon):
    daemon = make_daemon(config=POOL).start()
    put(daemon, "w", DATA)
    with Client(daemon.socket) as link:
        link.hello()
        link.alloc(2 * SIZE)
        becomes_ready(daemon, 3 * SIZE)
    daemon.wait_for(lambda: settled(daemon), 20)
    ctl_done(daemon, "offload", "w", "--to", "host")
    assert host_charge(daemon) == SIZE and ready(daemon) == 2 * SIZE
