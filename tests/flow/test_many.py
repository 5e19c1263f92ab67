"""Very many buffers, a narrow screen, a daemon of another release: what operators' tools do then."""
import json
import os
import re
import select
import socket
import struct
import threading

import pytest

from conftest import Daemon
from helpers import ctl_done, ctl_json, ctl_refused, on_terminal

MANY = int(os.environ.get("HBM_MANY", "10000"))  # the same with 100000, which takes a sanitized build a minute


@pytest.fixture(scope="module")
def full():
    """A daemon with that many buffers, of one group."""
    daemon = Daemon().start()
    tensors = {f"layers.0.t{i:06d}": {"dtype": "U8", "shape": [4], "data_offsets": [4 * i, 4 * i + 4]} for i in range(MANY)}
    header = json.dumps(tensors).encode()
    (daemon.home / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 * MANY))
    ctl_done(daemon, "load", daemon.home / "m.safetensors", "--as", "m", timeout=300)
    yield daemon
    daemon.close()


def test_many_buffers_are_all_listed_while_others_are_answered(full):
    with full.operator() as listing, full.operator() as other:
        listing.send({"jsonrpc": "2.0", "id": 1, "method": "hbm.ls"})
        for _ in range(5):  # the list is not read meanwhile: it is not done before these are
            other.rpc("hbm.accounts")
        assert len(listing.receive()["result"]) == MANY
    assert ctl_done(full, "ls", timeout=300).count("\n") == MANY + 1


def test_rows_of_a_long_list_are_written_as_the_list_is_read(full):
    """A list of any length takes no memory for all of it; no other answer, nor an event, comes into its line."""
    def ask(method, **params):
        return {"jsonrpc": "2.0", "id": method, "method": method, "params": params}

    with full.operator(120) as listing, full.operator() as other:
        listing.send(ask("hbm.ls"))
        assert select.select([listing.socket], [], [], 30)[0]
        for _ in range(1000):
            other.rpc("hbm.devices")
        other.rpc("hbm.priority", {"sel": "model:m", "priority": "7"})
        rows = listing.receive()["result"]
        assert len(rows) == MANY and (rows[0]["priority"], rows[-1]["priority"]) == ("5", "7")
        listing.send(ask("hbm.subscribe"))
        assert listing.receive()["result"] is True
        listing.send(ask("hbm.ls"))
        other.rpc("hbm.priority", {"sel": "model:m", "priority": "5"})
        lines = [listing.receive()]
        while "result" not in lines[-1]:
            lines.append(listing.receive())
        assert len(lines[-1]["result"]) == MANY


def test_screens_and_metrics_are_no_larger_for_it(full):
    assert f"{MANY} buffers" in ctl_done(full, "top", "--once") and len(ctl_done(full, "top", "--once")) < 2000
    text = ctl_done(full, "metrics")
    assert f"\nhbm_buffers {MANY}\n" in text and len(text) < 20_000
    assert re.search(r"^a  m, .*$", ctl_done(full, "map", timeout=300), re.M | re.I)
    assert ctl_json(full, "ls", "m/layers.0.t000007")[0]["name"] == "m/layers.0.t000007"


@pytest.mark.parametrize("words", [("status",), ("devices", "--links"), ("who",), ("models",), ("ls", "m/layers.0.t00000*"), ("accounts",), ("config",),
                                   ("ops",), ("top", "--once"), ("map",)])
def test_a_terminal_of_20_columns_gets_every_screen_and_without_colours_no_escapes(full, words):
    shown = on_terminal(full, 20, *words)
    assert shown.strip() and "\033" not in shown, shown[:400]


def answering(path, answer):
    """A daemon that says answer(request) to each line."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve():
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as lines:
            for line in lines:
                lines.write(answer(json.loads(line)).encode() + b"\n")
                lines.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener


def of_an_old_daemon(request):
    """One that has nothing but hbm.status."""
    known = {"result": {"version": "0.0.9", "pid": 1}} if request["method"] == "hbm.status" else \
        {"error": {"code": -32601, "message": "Method not found", "data": {"error": "METHOD_NOT_FOUND", "detail": "", "remedy": ""}}}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], **known})


NAMES = ["a{", "}b", '"],[', "\\", '\\"', "c"]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["as hbmd writes it", "as others may"])
def test_a_list_is_told_row_by_row_whatever_its_names_are(make_daemon, separators):
    daemon = make_daemon()
    daemon.runtime_dir.mkdir()
    rows = [{"name": name, "size": 1, "leases": [{"pid": 7}]} for name in NAMES]
    with answering(daemon.control, lambda request: json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": rows}, separators=separators)):
        assert ctl_json(daemon, "ls") == rows
    daemon.control.unlink()
    with answering(daemon.control, lambda request: json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": rows}, separators=separators)):
        assert [line.split()[0] for line in ctl_done(daemon, "ls").splitlines()[1:]] == NAMES
    daemon.control.unlink()


@pytest.mark.parametrize("rows", ['{"name":"a"}{"name":"b"}', '{"name":"a"', '{"name":"a}', "1", '{"name":"a"},{"name":"b"}]'])
def test_a_list_that_is_no_json_is_not_told_as_if_it_were(make_daemon, rows):
    daemon = make_daemon()
    daemon.runtime_dir.mkdir()
    with answering(daemon.control, lambda request: '{"jsonrpc":"2.0","id":%d,"result":[%s]}' % (request["id"], rows)):
        ctl_refused(daemon.ctl("ls"), 1, "the daemon's answer", "check that hbmctl and hbmd are of one release")
    daemon.control.unlink()


def test_a_daemon_of_another_release_is_named_with_its_version(make_daemon):
    daemon = make_daemon()
    daemon.runtime_dir.mkdir()
    with answering(daemon.control, of_an_old_daemon):
        ctl_refused(daemon.ctl("who"), 1, "hbmd is of 0.0.9 and does not know hbm.who", "install both of one release")
    daemon.control.unlink()
