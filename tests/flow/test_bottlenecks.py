"""hbmctl advise: what is measured once, which bottleneck is real by live counters, and what came of what was predicted."""
import json

import pytest

from helpers import (MIB, ProgramError, client_program, ctl_done, ctl_json, ctl_refused, empty, host_only, layers, load_layers, module_daemon, program,
                     safetensors, shared)
from conftest import DEVICE
from resuming import back
from wire import FORCE, KEEP, UNLOCKED

# As an H200 measured them, more or less: what a loaded machine makes of its own links is no test's business.
FIGURES = {"memory_gb_per_s": 4000, "to_host_gb_per_s": 55, "to_device_gb_per_s": 55, "from_disk_gb_per_s": 1.3, "back_fp16_gb_per_s": 99,
           "back_int8_gb_per_s": 176, "back_lossless_gb_per_s": 80, "attach_seconds": 0.1, "lock_seconds": 2e-8, "lock_away_seconds": 2e-4}


def profile(daemon, **figures):
    path = daemon.home / "profile.json"
    path.write_text(json.dumps({"device": "elsewhere", "name": "another", "driver": "NVIDIA 1.2.3", "hbmctl": "0.0.1",
                                "measured": "2026-01-01T00:00:00Z", "figures": {**FIGURES, **figures}}))
    return path


def advise(daemon, *words):
    return ctl_json(daemon, "advise", "--profile", profile(daemon), *words)


def advise_blind(daemon, *words):
    """With nothing measured."""
    path = daemon.home / "blind.json"
    path.write_text(json.dumps({"figures": {}}))
    return ctl_json(daemon, "advise", "--profile", path, *words)


def remark_of(told, strategy):
    [found] = [row for row in told["remarks"] if row["strategy"] == strategy]
    return found


def remark(told, bottleneck):
    [found] = [row for row in told["remarks"] if row["bottleneck"] == bottleneck]
    return found


def snapshot(daemon, told):
    path = daemon.home / "before.json"
    path.write_text(json.dumps(told))
    return path


def test_where_nothing_costs_anything_that_is_said(shared):
    load_layers(shared, "m")
    for words in ((), ("model:m",), ("m/layers.0.weight",)):
        told = advise(shared, *words)
        assert [row["bottleneck"] for row in told["remarks"]] == ["none"] and told["remarks"][0]["strategy"] is None
    assert told["live"]["needed_bytes"] == 4096 * 4 and told["live"]["f32_bytes"] == 4096 * 4 and told["live"]["groups"] == 1
    text = ctl_done(shared, "advise", "--profile", profile(shared))
    assert "is stale: it is of another (elsewhere)" in text and "\nnone\n" in text and "--pass SECONDS" in text


def test_a_model_that_three_clients_loaded_each_for_itself_is_to_be_shared(shared, program):
    names = ["one", "two", "three"]
    for name in names:
        load_layers(shared, name, 4, 16384)
    load_layers(shared, "small", 2)
    users = [program(shared) for _ in names]
    for user, name in zip(users, names):
        user.ask("model", name, "ro", 0, 5000)
    told = advise(shared)
    found = remark(told, "sharing")
    assert "IPC" in found["strategy"] and all(name in found["why"] for name in names) and "small" not in found["why"]
    assert found["before"] - found["predicted"] == told["live"]["copied_bytes"] == 2 * 4 * 16384 * 4
    assert told["live"]["copies"] == 3
    assert remark(advise(shared, "model:two"), "sharing")["predicted"] == found["predicted"]
    assert [row["bottleneck"] for row in advise(shared, "model:small")["remarks"]] == ["none"]
    for user, name in zip(users[1:], names[1:]):
        user.ask("mdetach", 0)
        ctl_done(shared, "rm", name)
        user.ask("model", "one", "ro", 0, 5000)
    shared.wait_for(lambda: sum(row["closing"] for row in shared.rpc("hbm.devices")[0]["tiers"]) == 0)
    after = advise(shared, "--since", snapshot(shared, told))
    [measured] = [row for row in after["measured"] if row["metric"] == "used_bytes"]
    assert measured["now"] <= measured["predicted"] < measured["before"], "a GPU's memory comes in larger pieces"
    assert not [row for row in after["remarks"] if row["bottleneck"] == "sharing"] and after["counted"]["attaches"] == told["counted"]["attaches"] + 2
    for user in users:
        user.end()


def test_models_of_one_layout_and_other_bytes_are_no_copies_of_each_other(shared):
    for seed, name in enumerate(("base", "tuned")):
        ctl_done(shared, "load", safetensors(shared.home / "tensors.safetensors", layers(2, 4096, seed)), "--as", name)
    assert [row["bottleneck"] for row in advise(shared)["remarks"]] == ["none"]
    ctl_done(shared, "offload", "model:tuned", "--to", "disk", "--force")
    found = remark(advise(shared), "sharing")
    assert found["strategy"] is None and "tuned" in found["why"] and "hbmctl hash" in found["unknown"], "that is not known then"


def test_a_declared_order_and_a_window_are_known(shared, program):
    load_layers(shared, "m")
    user = program(shared)
    user.ask("model", "m", "ro", UNLOCKED, 20000)
    assert [advise(shared, "model:m")["live"][key] for key in ("ordered", "windowed")] == [0, 0]
    user.ask("morder", 0, 1)
    user.ask("mwindow", 0, 0, FORCE)
    user.ask("mlock", 0, 20000, "layers.0")
    assert [advise(shared, "model:m")["live"][key] for key in ("ordered", "windowed")] == [1, 1]
    user.end()


@host_only
def test_buffers_of_several_processes_are_copies_when_their_bytes_are_and_not_while_they_are_zero(shared, program):
    users = [program(shared) for _ in range(3)]
    leases = [user.alloc(f"cache-{i}", MIB)[0] for i, user in enumerate(users)]
    assert [row["bottleneck"] for row in advise(shared)["remarks"]] == ["none"], "nobody has written there yet"
    for user, lease in zip(users, leases):
        user.ask("fill", lease, 7)
    told = advise(shared)
    assert told["live"]["copied_bytes"] == 2 * MIB and "3 buffers" in remark(told, "sharing")["why"]
    for user in users:
        user.end()


@host_only
def test_a_model_over_its_capacity_that_bounces_is_compressed_or_offloaded_by_a_share(make_daemon, program):
    config = "host_bytes = 16MiB\nmemory_wait_seconds = 1\noffload_limit = 50\n"
    daemon = make_daemon(supervise=True, config=config).start()
    load_layers(daemon, "m", 6, MIB // 8)
    ctl_done(daemon, "sleep", "m")
    (daemon.home / "hbmd.conf").write_text(config + "device_bytes = 2MiB\n")
    old = daemon.kill9()
    back(daemon, old)
    user = program(daemon)
    user.ask("model", "m", "ro", UNLOCKED, 20000)
    for turn in range(40):
        try:
            user.ask("mlock", 0, 20000, f"layers.{turn % 6}")
            user.ask("munlock", 0, f"layers.{turn % 6}")
        except ProgramError as error:
            assert error.name == "NO_MEMORY"
            break
    told = advise(daemon, "model:m", "--pass", "1")
    assert told["counted"]["bounces"] > 0
    compress, offload = [row for row in told["remarks"] if row["bottleneck"] == "capacity"]
    assert compress["strategy"] == "fp16 in place" and (compress["before"], compress["predicted"]) == (3 * MIB, 3 * MIB / 2)
    assert "advise-codec model:m" in compress["unknown"] and "compress group:GROUP --codec fp16" in compress["todo"]
    assert "34 % of it" in offload["why"] and "hides it" in offload["gain"] and offload["predicted"] == 0 < offload["before"]
    assert "run hbmctl advise --measure" in remark_of(advise_blind(daemon, "model:m"), offload["strategy"])["unknown"]
    user.ask("mdetach", 0)
    ctl_done(daemon, "sleep", "m")
    for group in {row["group"] for row in daemon.rpc("hbm.ls")}:
        ctl_done(daemon, "restore", f"group:{group}")
        ctl_done(daemon, "compress", f"group:{group}", "--codec", "fp16")
    after = advise(daemon, "model:m", "--since", snapshot(daemon, told))
    now = {row["metric"]: row["now"] for row in after["measured"]}
    assert now["needed_bytes"] == compress["predicted"]
    assert not [row for row in after["remarks"] if (row["strategy"] or "").startswith(("fp16", "offload"))]
    assert "needed_bytes" in ctl_done(daemon, "advise", "--profile", profile(daemon), "model:m", "--since", snapshot(daemon, told))
    user.end()


def test_many_attaches_of_little_are_a_matter_of_latency(make_daemon, program):
    daemon = make_daemon().start()  # which nobody has attached anything of so far
    owner, user = program(daemon), program(daemon)
    for i in range(8):
        owner.alloc(f"tiny-{i}", 4096, KEEP)
    for i in range(80):
        user.ask("detach", user.attach(f"tiny-{i % 8}")[0])
    told = advise(daemon, "tiny-*")
    found = remark(told, "latency")
    assert "one model" in found["strategy"] and told["counted"]["attaches"] >= 80
    assert found["predicted"] == told["live"]["loose_bytes"] and found["before"] <= found["predicted"]
    assert "run hbmctl advise --measure" in remark(advise_blind(daemon, "tiny-*"), "latency")["unknown"]
    for each in (owner, user):
        each.end()


def test_the_device_is_measured_once_and_its_profile_kept_until_it_is_of_another_driver(make_daemon):
    config = "device_bytes = 16MiB\nhost_bytes = 16MiB\ndisk_bytes = 16MiB\n" if DEVICE == "host" else ""
    daemon = make_daemon(config=config).start()
    assert ctl_json(daemon, "advise")["profile"] is None and "run hbmctl advise --measure" in ctl_done(daemon, "advise")
    measured = ctl_json(daemon, "advise", "--measure")
    known = {name for name, value in measured["figures"].items() if value}
    assert {name for name in FIGURES if name != "memory_gb_per_s"} <= known, measured
    assert all(value > 0 for value in measured["figures"].values() if value is not None)
    assert measured["figures"]["to_peer_gb_per_s"] or "no peer" in measured["missing"]["to_peer_gb_per_s"]
    path = daemon.state_dir / f"profile-{measured['device']}.json"
    assert json.loads(path.read_text()) == measured and measured["kind"] == DEVICE
    assert daemon.rpc("hbm.ls") == [] and daemon.wait_for(lambda: all(empty(daemon, tier) for tier in ("device", "host", "disk")))
    daemon.stop()
    daemon.start()
    told = ctl_json(daemon, "advise")["profile"]
    assert told["figures"] == measured["figures"] and told["stale"] is None and told["path"] == str(path)
    path.write_text(json.dumps({**measured, "driver": "NVIDIA 1.2.3"}))
    assert "NVIDIA 1.2.3" in ctl_json(daemon, "advise")["profile"]["stale"]
    assert "which is stale" in ctl_done(daemon, "advise")


@pytest.mark.parametrize("words, code, said", [(("--measure", "x"), 2, "leave out SEL"), (("x", "--device", "0"), 2, "own device"),
                                               (("--device", "77"), 1, "no device 77"), (("nosuch",), 1, "nosuch"),
                                               (("--since", "/nosuch"), 1, "/nosuch"), (("--profile", "/nosuch"), 1, "advise --measure")], ids=str)
def test_what_cannot_be_asked_is_refused_with_what_to_do(shared, words, code, said):
    ctl_refused(shared.ctl("advise", *words), code, said)


def test_files_that_are_no_profile_and_no_snapshot_are_refused(shared):
    path = shared.home / "broken.json"
    for text in ("", "{", "[]", '{"figures": 3}', '{"counted": {}}', "\0" * 64):
        path.write_text(text)
        ctl_refused(shared.ctl("advise", "--profile", path), 1, "broken.json", "advise --measure")
        ctl_refused(shared.ctl("advise", "--profile", profile(shared), "--since", path), 1, "broken.json", "hbmctl --json advise")
