"""The example manifests: YAML whose paths, options and keys are those of the programs."""
import re
import subprocess

import pytest

from conftest import BUILD, ROOT
from helpers import Client, host_only

yaml = pytest.importorskip("yaml")
MANIFESTS = ROOT / "packaging" / "kubernetes"


def documents(name):
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def of_kind(kind):
    [found] = [document for document in documents("hbmd-node.yaml") if document["kind"] == kind]
    return found


def listeners(text):
    return dict(re.findall(r"^\[listener (\S+)\]\ndirectory = (\S+)$", text, re.M))


def paths(spec):
    """Of each volume on the host, and where each container has it."""
    host = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts = [(mount["name"], mount["mountPath"]) for container in spec["containers"] + spec.get("initContainers", []) for mount in container["volumeMounts"]]
    assert {name for name, _ in mounts} == {volume["name"] for volume in spec["volumes"]}
    return host, mounts


def test_every_manifest_has_what_its_kind_is_and_where_it_belongs():
    names = sorted(path.name for path in MANIFESTS.iterdir())
    assert names == ["hbmd-node.yaml", "tenant-pod.yaml"]
    for document in [document for name in names for document in documents(name)]:
        assert document["apiVersion"] in ("v1", "apps/v1") and document["metadata"]["name"]


@host_only
def test_the_configuration_of_the_manifest_is_sound_and_what_it_serves_is_what_a_tenant_mounts(make_daemon, tmp_path):
    text = of_kind("ConfigMap")["data"]["hbmd.conf"]
    (tmp_path / "hbmd.conf").write_text(text)
    found = subprocess.run([str(BUILD / "hbmd"), "--check-config", "--config", str(tmp_path / "hbmd.conf")], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "configuration ok\n"), found.stderr
    [pod] = documents("tenant-pod.yaml")
    host, [(_, inside)] = paths(pod["spec"])
    assert set(host.values()) <= set(listeners(text).values())
    assert {"name": "HBM_RUNTIME_DIR", "value": inside} in pod["spec"]["containers"][0]["env"]

    # The same, where a test may make directories.
    daemon = make_daemon(config=text.replace("device = cuda", "device = host").replace("/run/hbm-tenants", "{home}/tenants"))
    for directory in listeners(text).values():
        (daemon.home / "tenants" / directory.rpartition("/")[2]).mkdir(parents=True, mode=0o755)
    (daemon.home / "hbmd.conf").write_text((daemon.home / "hbmd.conf").read_text().replace("{home}", str(daemon.home)))
    daemon.start()
    with Client(daemon.home / "tenants" / host["hbm"].rpartition("/")[2] / "hbmd.sock") as client:
        client.hello("engine")
        assert [row["listener"] for row in daemon.rpc("hbm.sessions")] == ["team-a"]


def test_the_daemon_s_pod_has_the_directories_that_its_options_and_listeners_name():
    spec = of_kind("DaemonSet")["spec"]["template"]["spec"]
    host, mounts = paths(spec)
    [container] = spec["containers"]
    command = container["command"]
    options = subprocess.run([str(BUILD / "hbmd"), "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word in options for word in command if word.startswith("--"))
    # Seen inside as on the host: what hbmd and its clients say of paths is the same.
    assert all(host.get(name, path) == path for name, path in mounts)
    for option in ("--runtime-dir", "--state-dir"):
        assert command[command.index(option) + 1] in host.values()
    made = spec["initContainers"][0]["command"]
    for directory in listeners(of_kind("ConfigMap")["data"]["hbmd.conf"]).values():
        assert directory in made and directory.rpartition("/")[0] in host.values()
    assert spec["hostPID"] and container["securityContext"]["privileged"]
    for installed in (command[0], container["readinessProbe"]["exec"]["command"][0]):
        assert installed in ("/usr/sbin/hbmd", "/usr/bin/hbmctl")
