"""hbmctl doctor: what it finds of daemon, driver and machine, and what it says of errors."""
import json
import os
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT
from helpers import OTHER, ctl_done, ctl_json, ctl_refused, module_daemon, root_only, shared  # noqa: F401


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a made-up driver in it."""
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", str(ROOT / "tests" / "flow" / "fake_driver.c"), "-o", str(folder / "libcuda.so.1")], check=True)
    shutil.copy(folder / "libcuda.so.1", folder / "libnvidia-ml.so.1")
    return folder


def findings(daemon, status=0, **environment):
    result = daemon.ctl("--json", "doctor", env={**os.environ, **environment})
    assert result.returncode == status, (result.stdout, result.stderr)
    rows = json.loads(result.stdout)
    assert all(set(row) == {"check", "state", "found", "fix"} and row["found"] for row in rows)
    assert all(row["fix"] for row in rows if row["state"] in ("warning", "failed"))
    return rows


def of(rows, check, state=None):
    return [row for row in rows if row["check"] == check and state in (None, row["state"])]


def test_a_daemon_that_is_well_is_found_so_with_its_devices_and_version(shared):
    rows = findings(shared)
    assert of(rows, "daemon", "ok") and of(rows, "versions", "ok") and of(rows, "device", "ok")
    assert of(rows, "memlock") and of(rows, "nofile") and of(rows, "spill disk") and of(rows, "io_uring")
    text = ctl_done(shared, "doctor")
    assert len(re.findall(r"^(?:ok|note|warning|failed) ", text, re.M)) == len(rows)


def test_without_a_daemon_the_machine_is_looked_at_all_the_same(make_daemon):
    daemon = make_daemon()
    rows = findings(daemon, 1)
    [failed] = of(rows, "daemon")
    assert failed["state"] == "failed" and "start hbmd" in failed["fix"]
    assert of(rows, "memlock") and of(rows, "WSL") and of(rows, "container")
    result = daemon.ctl("doctor")
    assert result.returncode == 1 and "failed   daemon" in result.stdout and result.stderr == ""


@root_only
def test_no_rights_on_the_socket_names_the_group_to_join(daemon):
    for path in (daemon.socket, daemon.control):
        os.chown(path, 0, 12)
        os.chmod(path, 0o660)
    os.chmod(daemon.home, 0o711)
    os.chmod(daemon.runtime_dir, 0o755)
    hbmctl = daemon.home / "hbmctl"
    shutil.copy(BUILD / "hbmctl", hbmctl)  # the build folder need not be that user's to see
    result = subprocess.run([str(hbmctl), "--runtime-dir", str(daemon.runtime_dir), "--json", "doctor"], capture_output=True, text=True,
                            check=False, user=OTHER, group=OTHER, extra_groups=[])
    assert result.returncode == 1, result.stderr
    [failed] = of(json.loads(result.stdout), "socket")
    assert "members of group man" in failed["found"] and "usermod -aG man nobody" in failed["fix"]
    result = subprocess.run([str(hbmctl), "--runtime-dir", str(daemon.runtime_dir), "ls"], capture_output=True, text=True,
                            check=False, user=OTHER, group=OTHER, extra_groups=[])
    ctl_refused(result, 1, "control.sock may be opened by members of group man alone")


def test_a_driver_that_is_well_is_found_so(shared, driver):
    rows = findings(shared, LD_LIBRARY_PATH=str(driver))
    [row] = of(rows, "driver", "ok")
    assert "for CUDA 13.0; 2 GPUs" in row["found"]
    assert len(of(rows, "VMM", "ok")) == len(of(rows, "persistence", "ok")) == len(of(rows, "NVLink", "ok")) == 2
    assert "Fake 1, sm_90" in of(rows, "VMM")[1]["found"] and "4 links up" in of(rows, "NVLink")[0]["found"]
    assert of(rows, "P2P", "ok") and not of(rows, "MIG")


@pytest.mark.parametrize("wrong, check, state, words", [
    ("uninit", "driver", "failed", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), ("old", "driver", "failed", "CUDA 11.8"),
    ("vmm", "VMM", "failed", "no virtual memory management and no sharing by POSIX file descriptor"),
    ("exclusive", "compute", "failed", "one process at a time"), ("apart", "P2P", "warning", "of 2 ways between 2 GPUs 0 go"),
    ("persistence", "persistence", "warning", "initialised anew"), ("mig", "MIG", "note", "cut into instances")])
def test_what_is_wrong_with_a_driver_is_found(shared, driver, wrong, check, state, words):
    rows = findings(shared, int(state == "failed"), LD_LIBRARY_PATH=str(driver), HBM_FAKE_DRIVER=wrong)
    assert words in of(rows, check, state)[0]["found"]


def test_a_driver_without_nvml_is_told_what_cannot_be_known(shared, driver, tmp_path):
    shutil.copy(driver / "libcuda.so.1", tmp_path)
    if of(findings(shared, LD_LIBRARY_PATH=str(tmp_path)), "persistence"):
        pytest.skip("waived: this machine has an NVML of its own")
    assert of(findings(shared, LD_LIBRARY_PATH=str(tmp_path)), "NVML", "warning")


def test_an_error_of_hbm_is_explained_by_name_and_number(shared):
    rows = re.findall(r'^ERROR\((\w+), (\d+), "(.*?)", "(.*)"\)$', (ROOT / "proto" / "errors.def").read_text(), re.M)
    assert len(rows) > 30
    for name, number, what, remedy in rows[::6]:
        told = ctl_json(shared, "doctor", "--explain", name)
        assert (told["code"], told["cause"], told["remedy"]) == (-int(number), what, remedy)
        assert name in ctl_done(shared, "doctor", f"--explain=-{number}")
    assert "cause:" in ctl_done(shared, "doctor", "--explain", "hbm_e_no_memory")


def test_every_error_of_cuda_is_in_the_table_and_explained_by_its_names_and_number(shared):
    rows = re.findall(r'^CUDA\((\d+), "(\w*)", "(\w*)", ".+", ".+"\)$', (ROOT / "client/ctl/cuda_errors.def").read_text(), re.M)
    assert len(rows) > 120 and len({row[0] for row in rows}) == len(rows)
    for number, name, other in rows[::25]:
        for one in filter(None, (number, name, other, other.lower())):
            told = ctl_json(shared, "doctor", "--explain", one)
            assert (told["of"], told["code"]) == ("CUDA", int(number)) and told["cause"] and told["remedy"]
    known = {name for row in rows for name in row[1:]}
    for header in ("cuda.h", "driver_types.h"):
        path = ROOT.joinpath("/usr/local/cuda/include", header)
        if path.exists():
            names = re.findall(r"^\s*(CUDA_ERROR_\w+|cudaError[A-Z]\w+)\s*=\s*\d+", path.read_text(), re.M)
            assert names and not set(names) - known


def test_an_error_that_nobody_knows_is_refused_with_what_can_be_asked(shared):
    for what in ("NOSUCH", "12345", "", "0x5"):
        ctl_refused(shared.ctl("doctor", "--explain", what), 1, "CUDA_ERROR_NO_DEVICE")
