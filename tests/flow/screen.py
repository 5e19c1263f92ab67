"""hbmctl on a terminal of our own."""
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from conftest import BUILD

CLEAR, ENTER, LEAVE, BOLD, PLAIN = "\x1b[H\x1b[2J", "\x1b[?1049h", "\x1b[?1049l", "\x1b[1m", "\x1b[0m"


def without_colour(line):
    return line.replace(BOLD, "").replace(PLAIN, "")


class Screen:
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

    def frame(self, good=lambda lines: True, seconds=30, clean=without_colour):
        """The lines of the first whole frame from now on that is good."""
        self.text = ""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            select.select([self.master], [], [], 0.1)
            self.read()
            for frame in self.text.split(CLEAR)[1:-1]:
                lines = clean(frame).split("\r\n")
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
