"""hbmctl complete, and the shells that ask it."""
import os
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT
from helpers import ctl_done, load_layers, module_daemon, put, shared  # noqa: F401

SCRIPTS = ROOT / "packaging" / "completion"


def offered(daemon, *words):
    return ctl_done(daemon, "complete", "--", *words).split()


def test_verbs_options_and_choices_come_from_the_verbs_own_table(shared):
    assert {"load", "ls", "top", "doctor"} <= set(offered(shared, "")) and offered(shared, "lo") == ["load"]
    assert offered(shared, "offload", "x", "--to", "") == ["host", "disk", "peer"]
    assert offered(shared, "offload", "x", "--to", "host", "--f") == ["--force"]
    assert {"--codec", "--mode", "--json", "--runtime-dir"} <= set(offered(shared, "compress", "--"))
    assert "int8" in offered(shared, "compress", "x", "--codec", "")
    assert offered(shared, "compress", "x", "--granularity", "") == ["tensor", "channel", "group:"]
    assert offered(shared, "--json", "help", "dec") == ["decompress"]
    assert offered(shared, "priority", "x", "n") == ["never"]
    assert offered(shared, "ls", "--group", "x", "--async", "") == offered(shared, "nosuch", "") == []
    assert offered(shared, "put", "w", "") == offered(shared, "load", "") == [], "files are the shell's"


def test_models_buffers_and_devices_come_from_the_daemon(shared):
    load_layers(shared, "llama", 2)
    put(shared, "loose/w", b"w" * 100)
    assert offered(shared, "sleep", "") == ["llama"] and offered(shared, "sleep", "x") == []
    assert offered(shared, "show", "") == ["model:llama", "llama/"]
    assert offered(shared, "offload", "--to", "host", "llama/l") == ["llama/layers.0.weight", "llama/layers.1.weight"]
    assert offered(shared, "show", "loose/") == ["loose/w"]
    assert offered(shared, "drain", "--device", "") == [row["uuid"] for row in shared.rpc("hbm.devices")]


def test_without_a_daemon_what_the_table_has_is_offered_all_the_same(make_daemon):
    daemon = make_daemon()
    assert offered(daemon, "wa") == ["wake", "wait"] and offered(daemon, "sleep", "") == []


def shell(name, text, daemon):
    found = shutil.which(name)
    if not found:
        pytest.skip(f"waived: no {name} here")
    environment = {**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}", "HBM_RUNTIME_DIR": str(daemon.runtime_dir)}
    return subprocess.run([found, "-c", text], capture_output=True, text=True, check=True, env=environment).stdout.splitlines()


@pytest.mark.parametrize("line, words", [("hbmctl off", ["offload"]), ("hbmctl show model:l", ["llama"]), ("hbmctl show llama/layers.1", ["llama/layers.1.weight"]),
                                         ("hbmctl offload x --to ", ["host", "disk", "peer"]), ("hbmctl load ", [])])
def test_bash_offers_what_hbmctl_says(shared, line, words):
    load_layers(shared, "llama", 2)
    text = f'. {SCRIPTS}/hbmctl.bash; COMP_LINE="{line}" COMP_POINT={len(line)}; _hbmctl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    assert [word for word in shell("bash", text, shared) if word] == words


def test_zsh_offers_what_hbmctl_says(shared):
    load_layers(shared, "llama", 2)
    text = f"compadd() {{ print -l -- ${{@:#-*}} }}; _files() {{ print files }}; words=(hbmctl %s) CURRENT=$#words; . {SCRIPTS}/_hbmctl"
    assert shell("zsh", text % "show model:l", shared) == ["model:llama"]
    assert shell("zsh", text % "offload x --to ''", shared) == ["host", "disk", "peer"]
    assert shell("zsh", text % "load ''", shared) == ["files"]
