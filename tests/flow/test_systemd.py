"""The shipped units under a real systemd: what is installed, what starts when, what the journal has."""
import re
import shutil
import subprocess

import pytest

from conftest import ROOT
from helpers import client_program  # noqa: F401 (fixtures)
from installed import VERSION, Client, booted, machine  # noqa: F401 (fixtures)


def test_the_units_have_nothing_that_systemd_complains_of(machine):
    manual = ["--man=no"] * (shutil.which("man") is None)
    found = machine.run("systemd-analyze", "verify", *manual, "hbmd.service", "hbmd.socket", "hbm-metrics.service")
    assert found.stdout + found.stderr == ""


PAGES = ("man1/hbmctl.1", "man3/libhbm.3", "man5/hbmd.conf.5", "man8/hbmd.8")


@pytest.mark.parametrize("page", PAGES)
def test_the_manual_renders_without_a_warning(booted, page):
    renderer = shutil.which("mandoc") or shutil.which("groff")
    if not renderer:
        pytest.skip("waived: neither mandoc nor groff here")
    how = ["-T", "lint", "-W", "warning"] if renderer.endswith("mandoc") else ["-ww", "-man", "-Tutf8", "-z"]
    found = booted.run(renderer, *how, f"/usr/share/man/{page}")
    assert found.stdout + found.stderr == ""


def test_the_manual_has_every_verb_option_call_and_key(booted):
    pages = {page: booted.outside(f"/usr/share/man/{page}").read_text().replace("\\-", "-") for page in PAGES}
    verbs = re.findall(r"^  ([a-z][a-z-]*) ", booted.ctl("help").stdout, re.M)
    keys = re.findall(r"^OPTION\((\w+)", (ROOT / "config" / "options.def").read_text(), re.M)
    assert len(verbs) > 20 and len(keys) > 20
    assert [verb for verb in verbs if not re.search(rf"^\\fB{verb}\b", pages["man1/hbmctl.1"], re.M)] == []
    for verb in verbs:
        options = re.findall(r"^  (--[a-z-]+)", booted.ctl("help", verb).stdout.split("Anywhere")[0], re.M)
        assert [option for option in options if f"\n.TP\n\\fB{option}" not in pages["man1/hbmctl.1"]] == [], verb
    calls = set(re.findall(r"\b(hbm_[a-z_]+)\(", (ROOT / "client" / "hbm.h").read_text()))
    assert len(calls) > 40
    assert [call for call in calls if f".BR {call} (" not in pages["man3/libhbm.3"]] == []
    assert [key for key in keys if f"\n.B {key}\n" not in pages["man5/hbmd.conf.5"]] == []
    options = re.findall(r"--[a-z-]+", booted.run("hbmd", "--help").stdout)
    assert [option for option in options if option not in pages["man8/hbmd.8"]] == []


def test_sysusers_makes_the_two_groups(machine):
    for group in ("hbm", "hbm-admin"):
        assert machine.run("getent", "group", group).stdout.startswith(f"{group}:")


def test_tmpfiles_makes_directories_that_only_root_may_change(booted):
    booted.systemctl("stop", "hbmd.socket", "hbmd.service")
    booted.run("rm", "-rf", "/run/hbmd", "/var/lib/hbmd")
    booted.run("systemd-tmpfiles", "--create", "hbmd.conf")
    assert booted.run("stat", "-c", "%U %G %a", "/run/hbmd", "/var/lib/hbmd").stdout == "root root 755\nroot root 700\n"
    booted.systemctl("start", "hbmd.socket")


def test_the_sockets_are_there_before_the_daemon_for_the_group_alone(booted):
    booted.systemctl("stop", "hbmd.service")
    booted.systemctl("restart", "hbmd.socket")
    assert booted.property("ActiveState") == "inactive"
    wanted = "socket root hbm 660\n" * 2
    assert booted.run("stat", "-c", "%F %U %G %a", "/run/hbmd/hbmd.sock", "/run/hbmd/control.sock").stdout == wanted


@pytest.mark.parametrize("asker", ["operator", "client"])
def test_the_first_to_connect_starts_the_daemon(booted, asker):
    booted.systemctl("stop", "hbmd.service")
    booted.systemctl("restart", "hbmd.socket")
    assert booted.property("ActiveState") == "inactive"
    if asker == "operator":
        assert booted.json("status")["version"] == VERSION
    else:
        Client(booted).end()
    assert booted.property("ActiveState") == "active"


def test_a_start_of_the_service_alone_brings_its_sockets(booted):
    booted.systemctl("stop", "hbmd.socket", "hbmd.service")
    booted.systemctl("start", "hbmd.service")
    assert booted.property("ActiveState", "hbmd.socket") == "active"
    assert booted.serves()


def test_a_start_returns_when_every_device_serves(booted):
    booted.systemctl("stop", "hbmd.service")
    booted.systemctl("restart", "hbmd.socket")
    since = booted.cursor()
    booted.systemctl("start", "hbmd.service")
    assert [device["state"] for device in booted.json("devices")] == ["ready"]
    assert booted.property("StatusText") == "serving 1 device in /run/hbmd"
    said = booted.messages(since)
    assert said.index(f"hbmd {VERSION} serves 1 device") < said.index("Started hbmd.service")


def test_the_journal_has_its_lines_with_their_priority(machine):
    since = machine.cursor()
    machine.systemctl("reload", "hbmd")
    machine.wait_for(lambda: "read again" in machine.messages(since))
    entry = next(entry for entry in machine.journal(since) if "read again" in entry["MESSAGE"])
    assert (entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"], entry["_PID"]) == ("6", "hbmd", str(machine.main_pid()))
    assert entry["_TRANSPORT"] == "journal"


def test_the_journal_explains_the_main_events(machine):
    machine.run("journalctl", "--update-catalog")
    listed = machine.run("journalctl", "--list-catalog").stdout
    ids = dict(re.findall(r'MESSAGE_(\w+) "MESSAGE_ID=([0-9a-f]{32})"', (ROOT / "daemon/base/message_ids.h").read_text()))
    assert all(f"{number} hbmd: " in listed for number in ids.values()), listed
    since = machine.cursor()
    machine.run("kill", "-KILL", machine.json("devices")[0]["worker_pid"])
    machine.wait_for(lambda: [entry for entry in machine.journal(since) if entry.get("MESSAGE_ID") == ids["WORKER_DIED"]])
    explained = machine.run("journalctl", "--catalog", "--no-pager", f"MESSAGE_ID={ids['WORKER_DIED']}").stdout
    assert "starting another" in explained and "Subject: A worker process has ended" in explained
    machine.wait_for(lambda: machine.json("devices")[0]["state"] == "ready" and machine.json("devices")[0]["worker_pid"])


def test_the_metrics_service_is_off_and_answers_on_the_loopback_address_where_it_is_on(machine):
    assert machine.property("ActiveState", "hbm-metrics.service") == "inactive"
    machine.systemctl("start", "hbm-metrics.service")
    ask = "exec 3<>/dev/tcp/127.0.0.1/9817; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    machine.wait_for(lambda: "\nhbm_up 1\n" in machine.run("bash", "-c", ask, check=False).stdout, 30)
    machine.systemctl("stop", "hbm-metrics.service")


def test_systemd_analyze_finds_the_exposure_ok(machine, capsys):
    said = machine.run("systemd-analyze", "security", "hbmd.service").stdout.splitlines()[-1]
    with capsys.disabled():
        print(f"\n{said}")
    assert float(re.search(r": ([\d.]+)", said)[1]) < 5


# ---- Containers ----

POD, CONTAINER = "2f1cfe2a-0b8c-4d8e-9a65-0123456789ab", "0123456789abcdef" * 4


def test_a_session_says_in_which_pod_and_container_its_process_is_also_after_a_restart(machine):
    group = "/sys/fs/cgroup/kubepods.slice/kubepods-pod" + POD.replace("-", "_") + f".slice/cri-containerd-{CONTAINER}.scope"
    machine.outside("/tmp/w").write_bytes(bytes(5000))
    machine.ctl("put", "w", "/tmp/w")
    machine.run("mkdir", "-p", group)
    with subprocess.Popen(machine.enter("sh", "-c", f"echo $$ >{group}/cgroup.procs && exec hbmctl attach w --hold 600"), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline().endswith(" w\n")
        for _ in range(2):
            session = machine.wait_for(lambda: [row for row in machine.json("sessions") if row["pod_uid"]])[0]
            assert (session["pod_uid"], session["container_id"], session["client"]) == (POD, CONTAINER, "hbmctl")
            assert f"in pod {POD} leases it" in machine.ctl("why-not-free", "w").stdout and POD in machine.ctl("sessions").stdout
            [row] = [row for row in machine.json("show", "w")[0]["kept_by"] if row["what"] == "lease"]
            assert (row["pod_uid"], row["container_id"]) == (POD, CONTAINER)
            assert f"in pod {POD}" in machine.ctl("who").stdout
            assert re.search(rf'^hbm_pod_mapped_bytes{{pod_uid="{POD}"}} [0-9]+$', machine.ctl("metrics").stdout, re.M)
            machine.kill()
        machine.ctl("kick", session["session"])
        holder.wait(20)
    machine.wait_for(lambda: not machine.json("sessions"))
    assert "pod_uid=" not in machine.ctl("metrics").stdout
    machine.wait_for(lambda: machine.run("rmdir", group, group.rpartition("/")[0], check=False).returncode == 0)
