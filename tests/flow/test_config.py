"""hbmd.conf: every error with its line, and never half-configured (FAULTS 30)."""
import contextlib
import os
import re
import signal
import subprocess

import pytest

from conftest import BUILD, DEVICE, ROOT
from helpers import Client, ctl_done, refused

BAD = """# a comment
device = gpu
no_such_key = 1
offload_limit = 130
reclaim_seconds = soon
host_bytes = 1GB
; another comment

log_level
offload_limit = 20
account_device_bytes = 10%
[section]
max_sessions = -1
memory_wait_seconds = 1e9
offload_limit = 25
"""
BAD_LINES = {2: "device", 3: "no_such_key", 4: "offload_limit", 5: "reclaim_seconds", 6: "host_bytes", 9: "key = value", 10: "offload_limit",
             11: "account_device_bytes", 12: "section", 13: "max_sessions", 14: "memory_wait_seconds", 15: "offload_limit"}


def write(daemon, text):
    path = daemon.home / "hbmd.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def run(daemon, path, *more):
    command = [str(BUILD / "hbmd"), "--device", DEVICE, "--runtime-dir", str(daemon.runtime_dir), "--state-dir", str(daemon.state_dir),
               "--config", str(path), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def complaints(text, path):
    """{line: sentence} of what was said about the file."""
    return {int(line): rest for line, rest in re.findall(rf"{re.escape(str(path))}:(\d+): (.*)", text)}


@pytest.mark.parametrize("more", [["--check-config"], [], ["--supervise"]], ids=["checked", "started", "supervised"])
def test_every_error_of_the_file_is_told_with_its_line_and_nothing_starts(make_daemon, more):
    """FAULTS 30."""
    daemon = make_daemon()
    path = write(daemon, BAD)
    result = run(daemon, path, *more)
    assert result.returncode not in (0, -11) and result.returncode > 0
    told = complaints(result.stderr + result.stdout, path)
    assert set(told) == set(BAD_LINES), told
    for line, word in BAD_LINES.items():
        assert word in told[line], (line, told[line])
    assert not daemon.runtime_dir.exists() and not daemon.state_dir.exists()


def test_the_configuration_that_is_shipped_is_sound_and_has_every_key(make_daemon):
    daemon = make_daemon()
    shipped = ROOT / "config" / "hbmd.conf"
    assert run(daemon, shipped, "--check-config").returncode == 0
    keys = re.findall(r"^OPTION\((\w+),", (ROOT / "config" / "options.def").read_text(), re.M)
    assert set(re.findall(r"^#?\s?(\w+) =", shipped.read_text(), re.M)) >= set(keys)
    active = write(daemon, re.sub(r"^# ?(\w+ = .*)$", r"\1", shipped.read_text(), flags=re.M))
    assert run(daemon, active, "--check-config").returncode == 0
    assert not daemon.runtime_dir.exists()


def test_under_another_prefix_the_installed_configuration_finds_the_workers_with_a_listener_too(make_daemon, tmp_path):
    daemon = make_daemon()
    subprocess.run([ROOT / "tests/tools/install.sh"], check=True, capture_output=True,
                   env=dict(os.environ, BUILD=str(BUILD), VERSION="0", DESTDIR=str(tmp_path), PREFIX="/opt/hbm"))
    installed = (tmp_path / "etc/hbmd/hbmd.conf").read_text()
    assert re.findall(r"^\w+ = .*$", installed, re.M) == ["worker_dir = /opt/hbm/lib/hbmd"]
    listener = write(daemon, re.sub(r"^#  (\[listener pods\]|\w+ = .*)$", r"\1", installed, flags=re.M))
    assert run(daemon, listener, "--check-config").returncode == 0


@pytest.mark.parametrize("text", [b"device = host\0\n", b"\xff\xfe\n", b"x" * 100000, b"offload_limit = " + b"9" * 5000, b"= 5\n",
                                  b"offload_limit = 99999999999999999999\n", b"host_bytes = 99999999999TiB\n"],
                         ids=["NUL", "bytes", "one long line", "a long value", "no key", "more than 2^64", "bytes more than 2^64"])
def test_text_that_is_no_configuration_is_refused_with_its_line(make_daemon, text):
    """FAULTS 30."""
    daemon = make_daemon()
    path = write(daemon, text)
    result = run(daemon, path, "--check-config")
    assert result.returncode > 0 and list(complaints(result.stderr + result.stdout, path)) == [1], result.stderr


def test_a_file_that_is_missing_or_a_directory_is_refused_by_name(make_daemon):
    daemon = make_daemon()
    for path in (daemon.home / "missing.conf", daemon.home):
        result = run(daemon, path, "--check-config")
        assert result.returncode > 0 and str(path) in result.stderr + result.stdout


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["--device", "tpu"], ["--log-level", "loud"], ["--config"], ["stray"]], ids=" ".join)
def test_a_wrong_command_line_is_refused_in_one_sentence(make_daemon, arguments):
    daemon = make_daemon()
    command = [str(BUILD / "hbmd"), "--runtime-dir", str(daemon.runtime_dir), "--state-dir", str(daemon.state_dir), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, cwd=daemon.home)
    assert result.returncode > 0 and result.stderr.strip() and not daemon.runtime_dir.exists()


def has_another_owner(daemon, old):
    """A moment without any is none."""
    with contextlib.suppress(OSError, ConnectionError):
        return daemon.pid != old
    return False


@pytest.mark.parametrize("how", [{"config": "supervise = yes\n"}, {"supervise": True}], ids=["by the file", "by the option"])
def test_a_daemon_is_supervised_by_its_file_as_by_its_option(make_daemon, how):
    """Once: the child, which reads the same file, does not supervise in its turn."""
    daemon = make_daemon(**how).start()
    old, parent = daemon.pid, daemon.process.pid
    assert value(daemon, "supervise")["value"] == "yes"
    for pid in (parent, old):
        children = open(f"/proc/{pid}/task/{pid}/children", encoding="ascii").read().split()
        assert (str(old) in children) == (pid == parent)
    os.kill(old, signal.SIGKILL)
    daemon.wait_for(lambda: has_another_owner(daemon, old), 30)
    assert daemon.process.poll() is None


def value(daemon, key):
    return [row for row in daemon.rpc("hbm.config") if row["key"] == key][0]


def test_the_effective_configuration_says_where_each_value_came_from(make_daemon):
    daemon = make_daemon(config="# first\n\noffload_limit = 17\nhost_bytes = 64MiB\n", options=["--log-level", "debug"]).start()
    assert value(daemon, "offload_limit") == {"key": "offload_limit", "value": "17", "source": f"{daemon.home}/hbmd.conf:3"}
    assert value(daemon, "reclaim_seconds")["source"] == "default"
    assert value(daemon, "log_level")["source"] == "command line" and value(daemon, "log_level")["value"] == "debug"
    tiers = {row["tier"]: row["capacity"] for row in daemon.rpc("hbm.devices")[0]["tiers"]}
    assert tiers["host"] == 64 << 20
    assert "offload_limit = 17" in ctl_done(daemon, "config")


def hup(daemon, text):
    write(daemon, text)
    lines = len(daemon.log.splitlines())
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_for(lambda: len(daemon.log.splitlines()) > lines)


def test_a_reload_applies_a_sound_file_and_keeps_the_old_over_a_bad_one(make_daemon):
    """FAULTS 30."""
    daemon = make_daemon(config="offload_limit = 17\nreclaim_seconds = 2\n").start()
    hup(daemon, "offload_limit = 40\nreclaim_seconds = 2\n")
    daemon.wait_for(lambda: value(daemon, "offload_limit")["value"] == "40")
    hup(daemon, "offload_limit = 50\nreclaim_seconds = never\nwhat = 1\n")
    daemon.wait_for(lambda: {2, 3} <= set(complaints(daemon.log, daemon.home / "hbmd.conf")))
    assert value(daemon, "offload_limit")["value"] == "40" and value(daemon, "reclaim_seconds")["value"] == "2"
    (daemon.home / "hbmd.conf").unlink()
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_for(lambda: "hbmd.conf" in daemon.log.splitlines()[-1] or "No such file" in daemon.log)
    assert value(daemon, "offload_limit")["value"] == "40"


def test_a_key_that_needs_a_restart_is_not_applied_by_a_reload_and_that_is_said(make_daemon):
    daemon = make_daemon(config="host_bytes = 64MiB\n").start()
    hup(daemon, "host_bytes = 128MiB\noffload_limit = 11\n")
    daemon.wait_for(lambda: value(daemon, "offload_limit")["value"] == "11")
    tiers = {row["tier"]: row["capacity"] for row in daemon.rpc("hbm.devices")[0]["tiers"]}
    assert tiers["host"] == 64 << 20 and "host_bytes" in daemon.log


@pytest.mark.parametrize("key, limit, asked, words", [
    ("account_buffers", "2", lambda link: [link.alloc(4096) for _ in range(3)], "buffers"),
    ("account_device_bytes", "64KiB", lambda link: [link.alloc(32768) for _ in range(4)], "bytes")])
def test_a_limit_of_an_account_is_held_and_named(make_daemon, key, limit, asked, words):
    daemon = make_daemon(config=f"{key} = {limit}\n").start()
    with Client(daemon.socket) as link:
        link.hello()
        with refused("LIMIT", words):
            asked(link)


def test_more_sessions_than_allowed_are_refused_with_the_key_to_raise(make_daemon):
    daemon = make_daemon(config="account_sessions = 3\n").start()
    links = [Client(daemon.socket) for _ in range(4)]
    for link in links[:3]:
        link.hello()
    with refused("LIMIT", "sessions"):
        links[3].hello()
    for link in links:
        link.close()
    with Client(daemon.socket) as link:
        link.hello()
