"""The Debian packages of HBM_DEBS (make deb) under a real systemd: installed, upgraded, removed, purged."""
import os
import pathlib

import pytest

from machine import Machine

DEBS = pathlib.Path(os.environ["HBM_DEBS"])
FILES = sorted(DEBS.glob("*.deb"))


@pytest.fixture(scope="module")
def machine():
    machine = Machine(DEBS)
    yield machine
    machine.close()


def dpkg(machine, *words):
    return machine.run("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", *words)


def install(machine):
    dpkg(machine, "--install", *map(machine.inside, FILES))


def serves(machine):
    return machine.wait_for(machine.serves, 30)


@pytest.fixture(scope="module")
def installed(machine):
    assert len(FILES) == 4 + any(path.name.startswith("libhbm-matmul0_") for path in FILES)
    machine.outside("/usr/sbin/policy-rc.d").unlink(missing_ok=True)  # in images of containers it forbids what is tested
    assert machine.run("getent", "group", "hbm", check=False).returncode and not machine.outside("/usr/sbin/hbmd").exists()
    install(machine)
    return machine


def test_an_installation_serves_with_groups_and_sockets_and_without_metrics(installed):
    serves(installed)
    assert installed.run("stat", "-c", "%G %a", "/run/hbmd/control.sock").stdout == "hbm 660\n"
    for unit, state in (("hbmd.service", "enabled"), ("hbmd.socket", "enabled"), ("hbm-metrics.service", "disabled")):
        assert installed.systemctl("is-enabled", unit, check=False).stdout.strip() == state
    assert installed.run("getent", "group", "hbm-admin").stdout
    assert " hbmd: " in installed.run("journalctl", "--list-catalog").stdout
    assert "hbmctl" in installed.run("man", "-w", "hbmctl", check=False).stdout or installed.outside("/usr/share/man/man1/hbmctl.1.gz").exists()


def test_programs_are_built_and_python_finds_its_library(installed):
    installed.outside("/tmp/app.c").write_text("#include <hbm.h>\nint main(void) { hbm_session *s; return -hbm_open(NULL, &s); }\n")
    installed.run("sh", "-c", "cc /tmp/app.c -o /tmp/app $(pkg-config --cflags --libs hbm) && /tmp/app")
    if any(path.name.startswith("libhbm-matmul0_") for path in FILES):
        installed.run("sh", "-c", "echo 'int main(void) { return 0; }' >/tmp/k.c && cc /tmp/k.c -o /tmp/k -Wl,--no-as-needed -lhbm-matmul && /tmp/k")
        assert installed.outside("/usr/include/hbm/hbm_matmul.h").exists()
    installed.run("/usr/bin/python3", "-c", "import hbm\nwith hbm.connect() as s: s.alloc((4,), 'F32', name='x')")


def test_an_upgrade_keeps_every_byte_and_what_was_configured(installed):
    serves(installed)
    installed.outside("/tmp/bytes").write_bytes(os.urandom(100_000))
    installed.ctl("put", "w", "/tmp/bytes")
    with open(installed.outside("/etc/hbmd/hbmd.conf"), "a", encoding="utf-8") as config:
        config.write("offload_limit = 41\n")
    before, hashed = installed.main_pid(), installed.ctl("hash", "w").stdout
    install(installed)
    assert serves(installed) != before
    assert installed.ctl("hash", "w").stdout == hashed
    assert "offload_limit = 41" in installed.ctl("config").stdout


def test_a_removal_stops_it_and_a_purge_leaves_nothing(installed):
    dpkg(installed, "--remove", "hbmd")
    assert installed.property("ActiveState") == "inactive" and installed.outside("/etc/hbmd/hbmd.conf").exists()
    dpkg(installed, "--purge", "hbmd", "python3-hbm", "libhbm-dev", "libhbm0", *(["libhbm-matmul0"] if len(FILES) > 4 else []))
    left = installed.run("sh", "-c", "find /usr /etc /var/lib /run -name '*hbm*' -not -path '/var/lib/dpkg/*' -not -path '/run/seen/*' -not -path "
                         "'*/systemd/transient/*' -not -path '/run/systemd/*'", check=False).stdout.split()
    assert not [path for path in left if "sysusers" not in path], left
