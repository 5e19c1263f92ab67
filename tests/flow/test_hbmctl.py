"""hbmctl as scripts see it: exit codes, JSON, one line of error."""
import json
import os
import re
import signal
import socket
import subprocess

import pytest

from conftest import BUILD
from helpers import (MIB, Client, client_program, ctl_done, ctl_json, ctl_refused, get, hash_of, load_layers, module_daemon, program, put,
                     row_of, safetensors, shared, used)
from vocab import CODECS_BY_TEXT

VERBS = ["status", "devices", "models", "sessions", "ops", "ls", "config", "events"]


@pytest.mark.parametrize("verb", VERBS)
def test_each_screen_prints_something_and_its_json_is_the_rpcs_result(shared, verb):
    load_layers(shared)
    assert ctl_done(shared, verb).strip() or verb == "sessions"
    result, direct = ctl_json(shared, verb), shared.rpc(f"hbm.{verb}")
    assert type(result) is type(direct)
    if verb in ("models", "ls", "config"):
        assert result == direct


@pytest.mark.parametrize("arguments", [[], ["nosuch"], ["ls", "a", "b"], ["show"], ["compress", "x"], ["offload", "x"], ["ls", "--nosuch"],
                                       ["compress", "x", "--codec"], ["events", "--limit", "many"], ["load", "x"], ["--runtime-dir"],
                                       ["attach", "x", "--hold", "-1"], ["offload", "x", "--to", "host", "--force=yes"], ["offload", "x", "--to", "moon"], ["attach", "id:zz"],
                                       ["wait", "zz"], ["kick", "me"], ["compress", "x", "--codec", "int9"], ["sleep", "m", "--to", "device"],
                                       ["compress", "x", "--codec", "int8", "--granularity", "group"]], ids=" ".join)
def test_a_wrong_command_line_ends_with_2_and_says_where_help_is(shared, arguments):
    result = shared.ctl(*arguments)
    ctl_refused(result, 2, "help")
    assert result.stdout == ""
    result = shared.ctl("--json", *arguments)
    assert result.returncode == 2 and json.loads(result.stdout)["error"] == "INVALID"


REFUSALS = [["show", "nothing"], ["hash", "nothing*"], ["free", "nothing"], ["rm", "nothing"], ["rename", "nothing", "x"], ["wait", "0x5"],
            ["cancel", "0x5"], ["kick", "0x5"], ["attach", "nothing"], ["get", "nothing", "/dev/null"], ["save", "nothing", "/tmp/x"],
            ["offload", "nothing", "--to", "host"], ["restore", "group:none"], ["sleep", "nothing"],
            ["wake", "nothing"], ["compress", "nothing", "--codec", "int8"], ["decompress", "model:none"], ["put", "x", "/nonexistent"],
            ["load", "/nonexistent", "--as", "m"], ["rpc", "hbm.nothing"], ["rpc", "hbm.show", "{"], ["show", "id:0x12"]]


@pytest.mark.parametrize("arguments", REFUSALS, ids=" ".join)
def test_a_refusal_ends_with_1_one_line_and_as_json_too(shared, arguments):
    ctl_refused(shared.ctl(*arguments), 1)
    result = shared.ctl("--json", *arguments)
    assert result.returncode == 1
    error = json.loads(result.stdout)
    assert set(error) >= {"error", "message", "detail", "remedy"} and re.fullmatch(r"[A-Z_]+", error["error"])
    assert result.stderr.strip()


def test_without_a_daemon_every_verb_ends_with_3(make_daemon):
    daemon = make_daemon()
    for arguments in (["status"], ["ls"], ["put", "x", __file__], ["attach", "x"], ["load", __file__, "--as", "m"], ["rpc", "hbm.ls"]):
        result = daemon.ctl(*arguments)
        if arguments[0] == "load":
            assert result.returncode in (1, 3)
        else:
            ctl_refused(result, 3, "hbmd")
    daemon.runtime_dir.mkdir()
    ctl_refused(daemon.ctl("status"), 3)


def test_a_list_of_nothing_is_no_failure(shared):
    for arguments in (["ls"], ["ls", "nothing*"], ["ls", "--group", "none"], ["models"], ["ops"]):
        ctl_done(shared, *arguments)
    assert ctl_json(shared, "ls", "nothing*") == []


def test_options_stand_anywhere_and_the_directory_comes_from_the_environment(shared):
    put(shared, "w", b"w" * 100)
    directory = str(shared.runtime_dir)
    for arguments in ([f"--runtime-dir={directory}", "ls", "--json"], ["ls", "--runtime-dir", directory, "--json"], ["--json", "ls", "w", "--runtime-dir", directory]):
        result = subprocess.run([str(BUILD / "hbmctl"), *arguments], capture_output=True, text=True, check=True)
        assert json.loads(result.stdout)[0]["name"] == "w"
    result = subprocess.run([str(BUILD / "hbmctl"), "ls"], capture_output=True, text=True, check=True, env={**os.environ, "HBM_RUNTIME_DIR": directory})
    assert "w" in result.stdout


def test_a_refusal_advises_nothing_that_the_verb_does_not_take(shared):
    put(shared, "w", b"w" * 100)
    put(shared, "v", b"v" * 100)
    for arguments in (["put", "w", _file(shared, b"w")], ["rename", "v", "w"]):
        result = shared.ctl(*arguments)
        ctl_refused(result, 1, "taken", "choose another name")
        assert "pass --replace" not in result.stderr
    ctl_refused(shared.ctl("wait", "0x1"), 1, "operation 0x", "`ops`")
    ctl_refused(shared.ctl("kick", "0x1"), 1, "session 0x", "`sessions`")
    ctl_refused(shared.ctl("load", shared.home / "none", "--as", "m"), 1, "No such file", "that you may read")


def test_one_is_not_many(shared):
    load_layers(shared, "m", 1)
    out = shared.home / "out.safetensors"
    assert ctl_done(shared, "save", "m", out).startswith("m: 1 file, ")
    assert ctl_done(shared, "load", out, "--as", "n").startswith("n: 1 tensor in 1 group, ")


def test_selectors_name_one_many_a_group_a_model_or_an_id(shared):
    load_layers(shared, "m", 3)
    put(shared, "m-other", b"x" * 10)
    names = {f"m/layers.{i}.weight" for i in range(3)}

    def selected(sel):
        return {row["name"] for row in ctl_json(shared, "show", sel)}

    assert selected("m/layers.1.weight") == {"m/layers.1.weight"}
    assert selected("model:m") == selected("m/*") == selected("m/layers.?.weight") == names
    assert selected("group:layers.2") == selected("group:m/layers.2") == {"m/layers.2.weight"}
    assert selected("id:" + row_of(shared, "m-other")["id"]) == {"m-other"}
    assert selected("*") == names | {"m-other"}


def test_put_get_hash_and_attach_agree_on_every_byte(shared):
    data = os.urandom(1234567)
    ctl_json(shared, "put", "w", _file(shared, data))
    out = shared.home / "out"
    ctl_done(shared, "get", "w", out)
    assert out.read_bytes() == data
    line = ctl_done(shared, "hash", "w")
    assert re.fullmatch(r"[0-9a-f]{16}  w\n", line)
    address, size, hash, name = ctl_done(shared, "attach", "w").split()
    assert (int(size), hash, name) == (len(data), line.split()[0], "w") and int(address, 16)


def _file(daemon, data):
    path = daemon.home / "file"
    path.write_bytes(data)
    return path


def test_put_takes_no_name_that_is_taken_and_no_empty_file(shared):
    put(shared, "w", b"first")
    ctl_refused(shared.ctl("put", "w", _file(shared, b"second")), 1, "w")
    assert get(shared, "w") == b"first"
    ctl_refused(shared.ctl("put", "empty", _file(shared, b"")), 1, "empty")
    ctl_refused(shared.ctl("put", "a/../b", _file(shared, b"x")), 1, "name")
    assert len(shared.rpc("hbm.ls")) == 1


def test_attach_holds_its_lease_for_as_long_as_it_was_told(shared):
    load_layers(shared, "m", 2)
    holder = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(shared.runtime_dir), "attach", "model:m", "--hold", "60"],
                              stdout=subprocess.PIPE, text=True)
    lines = [holder.stdout.readline() for _ in range(2)]
    assert {line.split()[3] for line in lines} == {"m/layers.0.weight", "m/layers.1.weight"}
    assert {line.split()[3]: line.split()[2] for line in lines} == hash_of(shared, "model:m")
    assert shared.rpc("hbm.models")[0]["leases"][0]["pid"] == holder.pid
    ctl_refused(shared.ctl("rm", "m"), 1, holder.pid)
    holder.send_signal(signal.SIGINT)
    holder.wait(10)
    holder.stdout.close()
    shared.wait_for(lambda: not shared.rpc("hbm.models")[0]["leases"])
    assert re.fullmatch(r"m is removed, [\d.]+ \w+\n", ctl_done(shared, "rm", "m"))


def test_free_rm_and_rename_do_what_they_say(shared):
    for name in ("a", "b1", "b2"):
        put(shared, name, name.encode())
    assert ctl_done(shared, "rename", "a", "renamed") == "the name is now renamed\n"
    assert get(shared, "renamed") == b"a"
    ctl_refused(shared.ctl("rename", "renamed", "b1"), 1, "b1")
    table = [line.split()[0] for line in ctl_done(shared, "free", "b*").splitlines()]
    assert table == ["NAME", "b1", "b2"]
    assert {row["name"] for row in shared.rpc("hbm.ls")} == {"renamed"}
    ctl_done(shared, "free", "renamed")
    assert used(shared) == 0


def test_a_free_of_many_of_which_one_is_leased_frees_none(shared):
    put(shared, "a", b"a"), put(shared, "b", b"b")
    with Client(shared.socket) as link:
        link.hello()
        link.attach("b")
        ctl_refused(shared.ctl("free", "*"), 1, "b: leased by pid", os.getpid())
    assert {row["name"] for row in shared.rpc("hbm.ls")} == {"a", "b"}


def test_kick_ends_a_session_and_the_client_hears_it(shared, program):
    user = program(shared)
    user.alloc("w", MIB)
    [session] = ctl_json(shared, "sessions")
    assert session["pid"] == user.process.pid and session["client"] == "client_program"
    assert ctl_done(shared, "kick", session["session"]) == f"pid {session['pid']} is disconnected, session {session['session']}\n"
    with pytest.raises(Exception, match="DISCONNECTED: .*is gone: an operator ended this session"):
        user.ask("attach", "w", "ro", 0, 100)


def test_async_gives_an_op_to_wait_for_and_ops_lists_it(shared):
    put(shared, "w", b"w" * MIB)
    op = ctl_done(shared, "offload", "w", "--to", "host", "--async").strip()
    assert re.fullmatch(r"0x[0-9a-f]+", op)
    ctl_done(shared, "wait", op)
    ctl_done(shared, "wait", op)
    row = ctl_json(shared, "wait", op)
    assert (row["state"], row["verb"], row["rows"][0]["tier"]) == ("done", "offload", "host")
    assert op in ctl_done(shared, "ops")
    assert ctl_json(shared, "cancel", op)["state"] == "done", "what has ended stays as it ended"


def test_a_wait_that_runs_out_of_time_ends_with_1(shared):
    with Client(shared.socket) as link:
        link.hello()
        link.alloc(4096, "w")
        op = ctl_done(shared, "offload", "w", "--to", "host", "--async").strip()
        ctl_refused(shared.ctl("wait", op, "--timeout", "0.05"), 1, op)
        ctl_done(shared, "cancel", op)


def test_events_say_what_happened_in_order_and_follow(shared):
    put(shared, "w", b"w")
    sequence = [event["seq"] for event in ctl_json(shared, "events")]
    assert sequence == sorted(sequence)
    follower = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(shared.runtime_dir), "events", "--follow", "--since", str(sequence[-1])],
                                stdout=subprocess.PIPE, text=True)
    try:
        subscribers = shared.wait_for(lambda: follower.poll() is None)
        for _ in range(3):
            ctl_done(shared, "offload", "w", "--to", "host"), ctl_done(shared, "restore", "w")
        seen = ""
        while "restore" not in seen:
            seen += follower.stdout.readline()
        assert "offload" in seen and subscribers
    finally:
        follower.send_signal(signal.SIGINT)
        follower.wait(10)
        follower.stdout.close()
    newest = ctl_json(shared, "events", "--limit", "2")
    assert len(newest) == 2 and newest[-1]["seq"] > sequence[-1]


def test_an_interrupted_load_leaves_nothing(shared):
    path = safetensors(shared.home / "big.safetensors", {"t": ("U8", (64 * MIB,), bytes(64 * MIB))})
    loader = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(shared.runtime_dir), "load", str(path), "--as", "m"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shared.wait_for(lambda: shared.rpc("hbm.models") or loader.poll() is not None)
    loader.send_signal(signal.SIGINT)
    loader.communicate(timeout=20)
    models = shared.rpc("hbm.models")
    assert models == [] and loader.returncode == 1 or models[0]["state"] == "sealed" and loader.returncode == 0
    shared.wait_for(lambda: shared.rpc("hbm.models") or used(shared) == 0)


def test_any_method_by_rpc_and_the_document_that_describes_them(shared):
    document = json.loads(ctl_done(shared, "rpc", "rpc.discover"))
    methods = {method["name"] for method in document["methods"]}
    assert {"hbm.status", "hbm.compress", "hbm.kick"} <= methods
    put(shared, "w", b"w")
    assert json.loads(ctl_done(shared, "rpc", "hbm.show", '{"sel": "w"}'))[0]["name"] == "w"


def test_help_names_every_verb_and_each_verb_explains_itself(shared):
    text = ctl_done(shared, "help")
    verbs = re.findall(r"^  ([a-z][a-z-]*) ", text, re.M)
    assert set("status devices models sessions ops ls show hash attach load save put get compress decompress offload restore sleep wake wait "
               "cancel free rm rename kick drain events config rpc".split()) <= set(verbs)
    for verb in verbs:
        explained = ctl_done(shared, "help", verb)
        assert f"hbmctl {verb}" in explained
        assert (f"hbmctl {verb} SEL" in explained) <= ("SEL is" in explained)
    for flag in ("--help", "--version"):
        assert ctl_done(shared, flag).strip()


def test_control_characters_in_a_name_never_reach_the_terminal(shared):
    name = "a\u009bb\u202e"
    result = shared.ctl("put", name, _file(shared, b"x"))
    if result.returncode == 0:
        assert "\u009b" not in ctl_done(shared, "ls")
        shared.rpc("hbm.free", {"sel": name})


def test_an_account_is_shown_by_what_its_things_are_called(tmp_path):
    """By a daemon of another version, which counts others and in another order."""
    things = [{"thing": "ops", "used": 7, "limit": 8}, {"thing": "fads", "used": 9, "limit": None}]
    answer = {"jsonrpc": "2.0", "id": 1, "result": [{"listener": "main", "uid": 5, "things": things}] * 2}
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(20)
        server.bind(str(tmp_path / "control.sock"))
        server.listen()
        with subprocess.Popen([BUILD / "hbmctl", "--runtime-dir", tmp_path, "accounts"], stdout=subprocess.PIPE, text=True) as shown:
            with server.accept()[0] as link, link.makefile() as asked:
                assert "hbm.accounts" in asked.readline()
                link.sendall(json.dumps(answer).encode() + b"\n")
            titles, first, second = shown.stdout.read().splitlines()
    assert shown.returncode == 0 and first == second
    assert dict(zip(titles.split(), first.replace(" of ", "/").split())) == {
        "LISTENER": "main", "UID": "5", "OPS": "7/8", **{title: "-" for title in titles.split() if title not in ("LISTENER", "UID", "OPS")}}


def test_bytes_that_are_no_text_reach_neither_the_terminal_nor_the_json(shared):
    result = shared.ctl("--json", "put", "x", os.fsdecode(b"/no/\x9b31m\xff"))  # what it prints is decoded strictly
    assert json.loads(result.stdout)["message"].startswith("/no/?31m? cannot be opened")
    ctl_refused(result, 1, "/no/?31m? cannot be opened")


def test_a_failed_operation_in_the_list_is_no_failure_of_the_list(shared):
    with Client(shared.socket) as link:
        link.hello()
        link.alloc(4096, "w")
        op = ctl_done(shared, "offload", "w", "--to", "host", "--async").strip()
        ctl_done(shared, "cancel", op)
    ctl_refused(shared.ctl("wait", op), 1)
    assert any(row["error"] for row in ctl_json(shared, "ops"))
    ctl_done(shared, "ops"), ctl_done(shared, "rpc", "hbm.ops")


def test_a_move_is_one_line_and_its_rows_are_there_for_who_asks(shared):
    load_layers(shared, "m", 3)
    line = r"m: 3 buffers, [\d.]+ [KM]?i?B to %s in [\d.]+ m?s, [\d.e+]+ [MG]B/s\n"
    assert re.fullmatch(line % "host", ctl_done(shared, "sleep", "m"))
    assert re.fullmatch(r"m: 3 buffers, .* already there, in host\n", ctl_done(shared, "sleep", "m"))
    assert re.fullmatch(line % "device", ctl_done(shared, "wake", "m"))
    assert ctl_done(shared, "offload", "model:m", "--to", "host", "--verbose", "--force").count("m/layers.") == 3
    assert len(ctl_json(shared, "restore", "model:m")) == 3


def test_a_hold_ends_with_its_session(shared):
    put(shared, "w", b"w")
    holder = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(shared.runtime_dir), "attach", "w", "--hold", "60"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    holder.stdout.readline()
    [session] = ctl_json(shared, "sessions")
    assert ctl_done(shared, "kick", session["session"]) == f"pid {session['pid']} is disconnected, session {session['session']}\n"
    _, told = holder.communicate(timeout=20)
    assert holder.returncode == 1 and "ended this session" in told


def test_a_hold_of_a_daemon_that_does_not_come_back_ends_before_its_person_gives_up(daemon):
    put(daemon, "w", b"w")
    holder = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(daemon.runtime_dir), "attach", "w", "--hold", "60"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    holder.stdout.readline()
    daemon.kill9()
    _, told = holder.communicate(timeout=15)
    assert holder.returncode == 3 and len(told.splitlines()) == 1, told


def test_a_save_of_what_a_lossy_codec_touched_says_so(shared):
    path = safetensors(shared.home / "m.safetensors", {"a.0.w": ("F32", (64, 64), os.urandom(64 * 64 * 4)), "b.0.w": ("U8", (64,), bytes(64))})
    ctl_done(shared, "load", path, "--as", "m")
    assert shared.ctl("save", "m", shared.home / "out.safetensors").stderr == ""
    ctl_done(shared, "compress", "m/a.0.w", "--codec", "bf16")
    for undo in (False, True):
        if undo:
            text = ctl_done(shared, "decompress", "m/a.0.w")
            assert "SQNR" not in text and "TIME" in text
            [row] = ctl_json(shared, "show", "m/a.0.w")
            assert row["receipt"] and row["encoding"] == "raw"
        result = shared.ctl("save", "m", shared.home / "out.safetensors")
        if undo or result.returncode == 0:
            assert result.returncode == 0 and "save: 1 of 2 tensors went through a lossy codec" in result.stderr


def test_the_bare_name_of_a_model_is_told_how_to_be_written(shared):
    load_layers(shared, "m", 1)
    for verb in (["show", "m"], ["offload", "m", "--to", "host"], ["attach", "m"]):
        ctl_refused(shared.ctl(*verb), 1, "m is a model: write model:m")


def test_events_after_a_number_are_the_oldest_after_it(shared):
    for name in "abc":
        put(shared, name, b"x")
    numbers = [event["seq"] for event in ctl_json(shared, "events")]
    assert [event["seq"] for event in ctl_json(shared, "events", "--since", numbers[0], "--limit", "2")] == numbers[1:3]
    assert [event["seq"] for event in ctl_json(shared, "events", "--limit", "2")] == numbers[-2:]
    assert ctl_json(shared, "events", "--since", numbers[0], "--limit", "0") == []
    assert int(ctl_done(shared, "events", "--since", numbers[0], "--limit", "1").split()[0]) == numbers[1]


def test_help_offers_every_codec_that_there_is(shared):
    """The table of codecs against the choices that are written out."""
    for verb in ("compress", "sleep"):
        offered = re.search(r"--codec ([^] ]+)", ctl_done(shared, "help", verb)).group(1)
        assert sorted(offered.split("|")) == sorted(set(CODECS_BY_TEXT) - {"raw"})


def test_bench_shows_what_shared_memory_gains_or_says_that_there_is_no_gpu(shared):
    result = shared.ctl("bench", "smem", "--size", "256")
    if result.returncode == 0:
        rows = [line.split() for line in result.stdout.splitlines()]
        assert [row[0] for row in rows if row and row[0] in ("naive", "tiled", "padded", "fast")] == ["naive", "tiled", "padded", "fast"]
    else:
        ctl_refused(result, 1, "GPU")
    ctl_refused(shared.ctl("bench", "disk"), 2, "smem")
