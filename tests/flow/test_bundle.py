"""hbmctl support-bundle: one archive of what the caller may see, whatever of it can be had."""
import json
import os
import shutil
import signal
import subprocess
import tarfile

from conftest import BUILD
from helpers import OTHER, ctl_json, ctl_refused, let_others_in, module_daemon, put, root_only, shared  # noqa: F401


def parts(path):
    """The text of each file in the archive."""
    with tarfile.open(path) as archive:
        assert all(member.uid == 0 and "/../" not in f"/{member.name}/" for member in archive)
        assert len({member.name.split("/")[0] for member in archive}) == 1
        return {os.path.basename(member.name): archive.extractfile(member).read().decode() for member in archive if member.isfile()}


def test_a_bundle_has_state_events_configuration_doctor_and_log(shared, tmp_path):
    put(shared, "w", bytes(5000))
    told = ctl_json(shared, "support-bundle", tmp_path / "b.tar")
    found = parts(tmp_path / "b.tar")
    assert told["file"] == str(tmp_path / "b.tar") and not {row["file"] for row in told["missing"]} - {"journal.txt"}
    assert json.loads(found["status.json"])["buffers"] == 1 and json.loads(found["why-not-free.json"]) == []
    assert any(row["event"] == "buffer.allocated" for row in json.loads(found["events.json"]))
    assert any(row["key"] == "state_dir" for row in json.loads(found["config.json"]))
    assert [row["uuid"] for row in json.loads(found["devices.json"])] == ["host"]
    assert "hbmd answers at" in found["doctor.txt"] and "hbm_up 1" in found["metrics.txt"] and "hbmctl " in found["version.txt"]
    assert found["log.txt"] == shared.log
    assert {"sessions.json", "ops.json", "models.json", "who.json", "accounts.json", "kernel.txt", "errors.txt"} <= set(found)
    assert os.stat(tmp_path / "b.tar").st_mode & 0o777 == 0o600


def test_without_a_daemon_the_bundle_says_so_and_has_the_rest(make_daemon, tmp_path):
    told = json.loads(make_daemon().ctl("--json", "support-bundle", tmp_path / "b.tar").stdout)
    assert {"status.json", "events.json"} <= {row["file"] for row in told["missing"]}
    found = parts(tmp_path / "b.tar")
    assert "start hbmd" in found["doctor.txt"] and "Linux" in found["kernel.txt"] and "log.txt" not in found


def test_a_daemon_that_hangs_is_not_waited_for(daemon, tmp_path):
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        told = json.loads(daemon.ctl("--json", "support-bundle", "--patience", 1, tmp_path / "b.tar").stdout)
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    assert {"file": "status.json", "why": "it did not end within 1 s"} in told["missing"]
    assert "errors.txt" in parts(tmp_path / "b.tar")


def test_a_bundle_that_cannot_be_written_leaves_nothing_behind(shared, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    here = {**os.environ, "TMPDIR": str(scratch)}
    ctl_refused(shared.ctl("support-bundle", tmp_path / "none" / "b.tar", env=here), 1, "b.tar was not written")
    assert shared.ctl("support-bundle", cwd=tmp_path, env=here).returncode == 0
    assert os.listdir(scratch) == [] and len(list(tmp_path.glob("hbm-support-*Z.tar"))) == 1
    ctl_refused(shared.ctl("support-bundle", env={**here, "TMPDIR": str(tmp_path / "none")}), 1, "TMPDIR")


@root_only
def test_another_user_s_bundle_names_nothing_of_others(daemon, tmp_path):
    put(daemon, "secret-name", bytes(5000))
    let_others_in(daemon)
    hbmctl = daemon.home / "hbmctl"
    shutil.copy(BUILD / "hbmctl", hbmctl)  # the build folder need not be that user's to see
    theirs = daemon.home / "theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    subprocess.run([str(hbmctl), "--runtime-dir", str(daemon.runtime_dir), "support-bundle", str(theirs / "b.tar")], check=True,
                   capture_output=True, user=OTHER, group=OTHER, extra_groups=[], env={**os.environ, "TMPDIR": str(theirs)})
    found = parts(theirs / "b.tar")
    assert json.loads(found["status.json"])["pid"] == daemon.pid
    assert not any("secret-name" in text for text in found.values()) and "log.txt" not in found
