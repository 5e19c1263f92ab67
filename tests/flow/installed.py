"""hbmd under a real systemd, installed by what `make install` runs: a machine for the module (tests/systemd/boot.sh says how that comes
about without a VM), which every test leaves serving, with no buffers."""
import re
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT
from helpers import Program, client_program, sanitizer_flags  # noqa: F401 (fixtures)

sys.path.insert(0, str(ROOT / "tests" / "systemd"))
from machine import Machine  # noqa: E402  pylint: disable=wrong-import-position

VERSION = re.search(r"^VERSION := (.*)$", (ROOT / "Makefile").read_text(), re.M)[1]
CONFIG = "/etc/hbmd/hbmd.conf"
DROP_INS = "/etc/systemd/system/hbmd.service.d"


@pytest.fixture(scope="module")
def booted(client_program):
    machine = Machine(BUILD)
    machine.client_program = machine.inside(BUILD / "tests" / "flow_client")
    assert client_program == str(BUILD / "tests" / "flow_client")
    try:
        machine.install(BUILD, VERSION)
        if sanitizer_flags():
            # LeakSanitizer stops a process's threads at its end, and waits for ever for one that ends just then: a stop
            # would time out. The other flows look for leaks.
            path = machine.outside(f"{DROP_INS}/sanitizer.conf")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("[Service]\nEnvironment=ASAN_OPTIONS=detect_leaks=0\n")
        with open(machine.outside(CONFIG), "a", encoding="utf-8") as config:
            config.write("device = host\n")
        # What a package's scripts do.
        machine.run("systemd-sysusers", "hbmd.conf")
        machine.run("systemd-tmpfiles", "--create", "hbmd.conf")
        machine.systemctl("daemon-reload")
        machine.systemctl("enable", "--now", "hbmd.socket")
        yield machine
    finally:
        machine.close()


@pytest.fixture
def machine(booted):
    """With hbmd serving, and holding nothing, before and after."""
    booted.systemctl("start", "hbmd.service")
    yield booted
    booted.systemctl("start", "hbmd.socket", "hbmd.service")  # if the test failed with it down
    booted.wait_for(booted.serves)
    for model in booted.json("models"):
        booted.ctl("rm", model["name"])
    for buffer in booted.json("ls"):
        booted.ctl("free", f"id:{buffer['id']}")
    status = booted.json("status")
    assert (status["buffers"], status["models"]) == (0, 0)
    complaints = re.findall(r"(?:ERROR: \w+Sanitizer|runtime error:).*", booted.messages())
    assert not complaints, complaints


class Client(Program):
    """A process of libhbm inside the machine."""

    def __init__(self, machine):  # pylint: disable=super-init-not-called
        self.process = subprocess.Popen(machine.enter(machine.client_program, "/run/hbmd"), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ask("open", 0)
