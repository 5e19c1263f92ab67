"""hbmctl top: on terminals of several sizes, without one, and while the daemon comes and goes."""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from conftest import BUILD, Daemon
from helpers import ctl_done, ctl_json, ctl_refused, load_layers, module_daemon, put, shared  # noqa: F401

MODELS = 22
CLEAR, ENTER, LEAVE = "\x1b[H\x1b[2J", "\x1b[?1049h", "\x1b[?1049l"


class Screen:
    """hbmctl on a terminal of our own."""

    def __init__(self, daemon, *arguments, columns=80, lines=24, **environment):
        self.master, slave = pty.openpty()
        self.resize(columns, lines, slave)
        self.before = termios.tcgetattr(slave)

        def lead():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(daemon.runtime_dir), *arguments], stdin=slave, stdout=slave,
                                        stderr=slave, preexec_fn=lead, env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment})
        self.slave, self.text = slave, ""

    def resize(self, columns, lines, fd=None):
        fcntl.ioctl(self.master if fd is None else fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self):
        while select.select([self.master], [], [], 0)[0]:
            self.text += os.read(self.master, 65536).decode()

    def press(self, key):
        os.write(self.master, key.encode())

    def frame(self, good=lambda lines: True, seconds=30):
        """The lines of the first whole frame from now on that is good."""
        self.text = ""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            select.select([self.master], [], [], 0.1)
            self.read()
            for frame in self.text.split(CLEAR)[1:-1]:
                lines = frame.replace("\x1b[1m", "").replace("\x1b[0m", "").split("\r\n")
                if good(lines):
                    return lines
        raise AssertionError(f"no such frame: {self.text!r}")

    def end(self, how=lambda screen: screen.press("q")):
        """It ends by that, and leaves the terminal as it was."""
        self.text = ""
        how(self)
        deadline = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            select.select([self.master], [], [], 0.05)
            self.read()
        self.read()
        assert self.process.returncode == 0 and LEAVE in self.text
        assert termios.tcgetattr(self.slave) == self.before

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def screen():
    with contextlib.ExitStack() as stack:
        def make(daemon, *arguments, **how):
            made = Screen(daemon, "top", "--interval", "0.2", *arguments, **how)
            stack.callback(made.close)
            return made
        yield make


@pytest.fixture(scope="module")
def crowded():
    """Models, the later the larger."""
    daemon = Daemon().start()
    for i in range(MODELS):
        load_layers(daemon, f"model-{MODELS - 1 - i:02}", 2, 256 * (i + 1))
    yield daemon
    daemon.close()


def models(lines):
    return [line.split()[0] for line in lines if line.startswith("model-")]


def test_without_a_terminal_it_is_one_screen_with_everything(crowded):
    text = ctl_done(crowded, "top")
    assert "\x1b" not in text and len(ctl_done(crowded, "top", "--once").splitlines()) == len(text.splitlines())
    lines = text.splitlines()
    assert lines[0].startswith("hbmd ") and f"{MODELS} models, {2 * MODELS} buffers" in lines[0]
    assert re.match(r"N +DEVICE +STATE", lines[1]) and "[" in lines[2]
    assert models(lines) == [f"model-{i:02}" for i in range(MODELS)], "the largest first"
    assert models(ctl_done(crowded, "top", "--sort", "name").splitlines()) == [f"model-{i:02}" for i in range(MODELS)]
    assert models(ctl_done(crowded, "top", "--sort", "age").splitlines()) == [f"model-{MODELS - 1 - i:02}" for i in range(MODELS)]
    answers = ctl_json(crowded, "top")
    assert set(answers) == {"status", "models", "sessions", "ops"} and len(answers["models"]) == MODELS
    ctl_refused(crowded.ctl("top", "--sort", "colour"), 2, "bytes|name|age")


@pytest.mark.parametrize("columns, lines", [(80, 24), (20, 10), (200, 60)])
def test_it_fits_the_terminal_and_says_what_has_no_room(crowded, screen, columns, lines):
    shown = screen(crowded, columns=columns, lines=lines)
    frame = shown.frame()
    assert len(frame) <= lines and all(len(line) <= columns for line in frame), frame
    assert len(models(frame)) == (MODELS if lines == 60 else len(models(frame))) and (lines == 2 or models(frame))
    if columns == 80:
        assert re.search(r"; \d+ rows have no room", frame[0]) and re.match(r"MODEL +STATE +GROUPS +DEVICE", frame[3])
    shown.end()


def test_another_size_is_another_screen_at_once(crowded, screen):
    shown = screen(crowded)
    shown.frame(lambda frame: len(frame) > 10)
    shown.resize(30, 8)
    shown.frame(lambda frame: len(frame) <= 8 and all(len(line) <= 30 for line in frame))
    shown.resize(100, 50)
    shown.frame(lambda frame: len(models(frame)) == MODELS)
    shown.end(lambda each: each.process.send_signal(signal.SIGTERM))


def test_keys_sort_it(crowded, screen):
    shown = screen(crowded, "--sort", "age")
    assert models(shown.frame())[0] == f"model-{MODELS - 1}"
    shown.press("n")
    assert models(shown.frame(lambda frame: "by name" in frame[-1]))[0] == "model-00"
    shown.press("a")
    assert models(shown.frame(lambda frame: "by age" in frame[-1]))[0] == f"model-{MODELS - 1}"
    shown.end()


def test_colour_is_for_those_who_want_it(shared, screen):
    for options, environment, bold in (((), {}, True), (("--no-color",), {}, False), ((), {"NO_COLOR": "1"}, False)):
        shown = screen(shared, *options, **environment)
        shown.frame()
        assert ("\x1b[1m" in shown.text) == bold
        shown.end()
    shown = screen(shared, TERM="dumb")
    shown.process.wait(30)
    shown.read()
    assert ENTER not in shown.text and "DEVICE" in shown.text


def test_it_outlives_the_daemon_and_finds_the_next(daemon, screen):
    shown = screen(daemon)
    shown.frame(lambda frame: frame[0].startswith("hbmd "))
    daemon.stop()
    shown.frame(lambda frame: frame[0].startswith("no daemon answers"))
    daemon.start()
    shown.frame(lambda frame: frame[0].startswith("hbmd "))
    shown.end()
    daemon.stop()
    ctl_refused(daemon.ctl("top"), 3, "hbmd")


def test_a_move_is_there_with_how_far_it_is(make_daemon):
    daemon = make_daemon(config="disk_write_limit = 1\n").start()
    put(daemon, "w", bytes(48 << 20))
    op = json.loads(ctl_done(daemon, "--json", "offload", "w", "--to", "disk", "--async"))["op"]
    moving = re.compile(r"offload +\[###-------\] +33 % +48\.0 MiB")
    text = daemon.wait_for(lambda: text if moving.search(text := ctl_done(daemon, "top")) else None, 30)
    assert re.search(r"^0 +disk_write ", text, re.M), text
    ctl_done(daemon, "cancel", op)
