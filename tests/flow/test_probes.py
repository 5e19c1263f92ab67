"""Static probes: they are in the program, where their header was there to build with, and the example script listens to them."""
import re
import subprocess

from conftest import BUILD, ROOT

SOURCE = re.compile(r"\bUSDT([234])\((\w+),")


def in_sources():
    """How many arguments each has."""
    found = {}
    for path in (ROOT / "daemon").rglob("*.c"):
        for n, name in SOURCE.findall(path.read_text()):
            assert found.setdefault(name, int(n)) == int(n), name
    return found


def header_is_there():
    return subprocess.run(["gcc", "-E", "-include", "sys/sdt.h", "-xc", "/dev/null"], capture_output=True, check=False).returncode == 0


def test_the_daemon_has_the_probes_of_its_sources_or_none_without_their_header():
    notes = subprocess.run(["readelf", "--notes", "--wide", str(BUILD / "hbmd")], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"Provider: hbmd\s+Name: (\w+)", notes))
    assert found == (set(in_sources()) if header_is_there() else set())
    assert {"attach", "detach", "lock_wait", "job_begin", "job_end", "reclaim", "restart"} <= set(in_sources())


def test_the_example_listens_to_all_of_them_and_to_no_argument_that_they_lack():
    script = (ROOT / "packaging" / "hbmd.bt").read_text()
    probes = in_sources()
    described = dict(re.findall(r"^// (\w+)  +(.*)$", script, re.M))
    assert set(described) == set(probes)
    used = re.split(r"^usdt:/usr/sbin/hbmd:hbmd:", re.sub(r"^//.*$", "", script, flags=re.M), flags=re.M)[1:]
    assert {each.split()[0] for each in used} == set(probes)
    for each in used:
        assert max(map(int, re.findall(r"\barg([0-9])", each)), default=0) < probes[each.split()[0]], each
