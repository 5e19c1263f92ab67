"""What an operator's socket survives, and what it must answer (FAULTS 31)."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from conftest import BUILD, DEVICE, ROOT, RpcError
from helpers import child, load_layers, put  # noqa: F401 (a fixture)
from packages import PIP, fetch, with_peers
from wire import Client

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602


def request(method="hbm.ls", **members):
    return {"jsonrpc": "2.0", "id": 1, "method": method, **members}


@pytest.fixture
def operator(daemon):
    with daemon.operator() as connection:
        yield connection
    assert daemon.rpc("hbm.status")["pid"]


def refused(answer, code, id=None):
    assert answer["jsonrpc"] == "2.0" and answer["id"] == id and "result" not in answer
    assert answer["error"]["code"] == code, answer
    assert set(answer["error"]["data"]) >= {"error", "detail", "remedy"}
    return answer["error"]


BROKEN = [b"", b" ", b"{", b"nonsense", b"{}{}", b"[1,]", b"{'a':1}", b'{"jsonrpc":"2.0","method":"hbm.ls","id":1}x',
          b'{"jsonrpc":"2.0","method":"hbm.ls","id":01}', b'{"jsonrpc":"2.0","method":"hbm.ls","id":NaN}']


@pytest.mark.parametrize("line", BROKEN)
def test_text_that_is_not_json_is_a_parse_error(operator, line):
    refused(operator.ask(line), PARSE_ERROR)
    assert operator.rpc("hbm.ls") == []


@pytest.mark.parametrize("text", [b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\\ud800"])
def test_invalid_utf8_is_a_parse_error(operator, text):
    refused(operator.ask(b'{"jsonrpc":"2.0","id":1,"method":"hbm.ls","params":["' + text + b'"]}'), PARSE_ERROR)
    assert operator.rpc("hbm.ls") == []


@pytest.mark.parametrize("text", [b"a\0b", b"a\\u0000b"])
def test_nul_bytes_are_a_parse_error(operator, text):
    refused(operator.ask(b'{"jsonrpc":"2.0","id":1,"method":"hbm.show","params":["' + text + b'"]}'), PARSE_ERROR)
    refused(operator.ask(b"\0" + json.dumps(request()).encode()), PARSE_ERROR)


@pytest.mark.parametrize("version", ["1.0", 2.0, None, "2.1", ""])
def test_another_version_is_an_invalid_request(operator, version):
    refused(operator.ask(request(jsonrpc=version)), INVALID_REQUEST, id=1)


def test_a_request_without_its_version_or_method_is_invalid(operator):
    refused(operator.ask({"id": 1, "method": "hbm.ls"}), INVALID_REQUEST, id=1)
    refused(operator.ask({"jsonrpc": "2.0", "id": 1}), INVALID_REQUEST, id=1)
    refused(operator.ask({"jsonrpc": "2.0", "method": 1, "params": "bar"}), INVALID_REQUEST)
    refused(operator.ask({"jsonrpc": "2.0", "id": [1], "method": "hbm.ls"}), INVALID_REQUEST)


@pytest.mark.parametrize("method", ["hbm.nothing", "", "HBM.LS", "rpc.nothing", "hbm.ls ", "x" * 100000], ids=lambda name: name[:12] or "empty")
def test_an_unknown_method_is_said_to_be_one(operator, method):
    refused(operator.ask(request(method)), METHOD_NOT_FOUND, id=1)


@pytest.mark.parametrize("method, params", [
    ("hbm.show", {}), ("hbm.show", []), ("hbm.show", {"sel": 1}), ("hbm.show", {"sel": None}), ("hbm.show", ["a", "b"]),
    ("hbm.show", {"sel": "a", "extra": 1}), ("hbm.show", {"SEL": "a"}), ("hbm.show", ["x" * 256]), ("hbm.wait", {"op": 5}),
    ("hbm.wait", {"op": "5"}), ("hbm.wait", {"op": "0xz"}), ("hbm.offload", {"sel": "a", "to": "host", "async": "yes"}),
    ("hbm.events", {"since": "1"}), ("hbm.status", {"x": 1}), ("hbm.status", [1]),
])
def test_wrong_parameters_are_refused_by_name(operator, method, params):
    refused(operator.ask(request(method, params=params)), INVALID_PARAMS, id=1)


@pytest.mark.parametrize("params", ["text", 5, True, None])
def test_parameters_that_are_no_structure_are_an_invalid_request(operator, params):
    refused(operator.ask(request(params=params)), INVALID_REQUEST, id=1)


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_of_10000_is_refused(operator, opening, closing):
    refused(operator.ask(opening * 10000 + b"1" + closing * 10000), PARSE_ERROR)
    refused(operator.ask(opening * 10000), PARSE_ERROR)
    assert operator.rpc("hbm.ls") == []


def test_duplicate_keys_are_refused(operator):
    refused(operator.ask(b'{"jsonrpc":"2.0","id":1,"method":"hbm.ls","method":"hbm.status"}'), PARSE_ERROR)
    refused(operator.ask(b'{"jsonrpc":"2.0","id":1,"method":"hbm.ls","params":{"glob":"a","gl\\u006fb":"b"}}'), PARSE_ERROR)


def test_a_line_of_100_mb_ends_its_connection_and_is_never_held(daemon):
    before = daemon.rpc("hbm.status")["rss_bytes"]
    with daemon.operator() as operator:
        with pytest.raises(OSError):
            for _ in range(100):
                operator.socket.sendall(b"x" * 1_000_000)
        refused(operator.receive(), PARSE_ERROR)
        assert operator.receive() is None
    assert daemon.rpc("hbm.status")["rss_bytes"] < before + (16 << 20)


def test_an_empty_batch_is_one_invalid_request(operator):
    refused(operator.ask([]), INVALID_REQUEST)


def test_a_batch_of_100000_is_refused_whole(operator):
    refused(operator.ask(b"[" + b",".join([b"{}"] * 100_000) + b"]"), INVALID_REQUEST)
    refused(operator.ask([request()] * 1001), INVALID_REQUEST)
    assert len(operator.ask([request()] * 1000)) == 1000


def test_a_batch_is_answered_by_one_array_without_the_notifications(operator):
    notification = {"jsonrpc": "2.0", "method": "hbm.ls"}
    answers = operator.ask([request(id="a"), notification, 1, request("hbm.nothing", id=2), request(id=None)])
    assert sorted((answer["id"] for answer in answers), key=str) == [2, None, None, "a"]
    operator.send([notification, notification])
    operator.send(notification)
    assert operator.rpc("hbm.ls") == []


@pytest.mark.parametrize("id", ["", "text", "\u00e9\U0001f600", 0, -1, 2**53, 1.5, None])
def test_an_answer_carries_the_id_it_was_asked_under(operator, id):
    assert operator.ask(request(id=id)) == {"jsonrpc": "2.0", "id": id, "result": []}


def test_what_comes_in_pieces_and_what_comes_at_once_is_the_same(operator):
    line = json.dumps(request()).encode() + b"\n"
    for byte in line:
        operator.socket.send(bytes([byte]))
    assert operator.receive()["result"] == []
    operator.socket.sendall(line * 500)
    assert all(operator.receive()["result"] == [] for _ in range(500))


def test_the_last_line_needs_no_newline_from_one_who_stops_writing(operator):
    operator.socket.sendall(json.dumps(request()).encode())
    operator.socket.shutdown(socket.SHUT_WR)
    assert operator.receive()["result"] == []
    assert operator.receive() is None


def test_connections_beyond_the_bound_hear_why(daemon):
    open_ones = [daemon.operator() for _ in range(64)]
    for each in open_ones:
        each.rpc("hbm.ls")
    with daemon.operator() as late:
        assert refused(late.receive(), -11)["data"]["error"] == "LIMIT"
        assert late.receive() is None
    open_ones.pop().socket.close()
    daemon.wait_for(lambda: able(daemon))
    for each in open_ones:
        each.socket.close()


def able(daemon):
    try:
        return daemon.rpc("hbm.ls") == []
    except (RpcError, OSError, AssertionError):
        return False


def test_one_who_asks_and_never_reads_holds_up_nobody(daemon):
    with daemon.operator(timeout=1) as deaf:
        with pytest.raises(TimeoutError):
            for _ in range(100_000):
                deaf.send(request("rpc.discover"))
        started = time.monotonic()
        assert daemon.rpc("hbm.ls") == []
        assert time.monotonic() - started < 1


def test_a_subscriber_hears_what_happens(daemon):
    with daemon.operator() as operator, Client(daemon.socket) as client:
        assert operator.rpc("hbm.subscribe") is True
        client.hello()
        grant, fd = client.alloc(4096, "heard")
        if fd is not None:
            os.close(fd)
        while (event := operator.receive())["params"]["name"] != "heard":
            assert event["method"] == "hbm.event" and "id" not in event
        assert event["params"]["id"] == f"0x{grant['buffer']:016x}"
        past = operator_events(daemon, event["params"]["seq"])
        assert past[-1]["seq"] >= event["params"]["seq"]


def operator_events(daemon, seq):
    return daemon.rpc("hbm.events", {"since": seq - 1})


def test_a_buffer_row_says_everything(daemon):
    with Client(daemon.socket) as client:
        client.hello(client="rows")
        grant, fd = client.alloc(0, "rows/w", dtype=11, rank=2, dims=[3, 5], group="g")
        if fd is not None:
            os.close(fd)
        (row,) = daemon.rpc("hbm.ls", ["rows/*"])
        assert row["id"] == f"0x{grant['buffer']:016x}" and row["name"] == "rows/w" and row["group"] == "g"
        assert row["size"] == 60 and row["dtype"] == "F32" and row["shape"] == [3, 5] and row["tier"] == "device"
        assert row["encoding"] == "raw" and row["handle"] == ("vmm-fd" if DEVICE == "cuda" else "memfd")
        assert row["owner"] == os.getuid() and row["mode"] == "0600" and row["model"] is None and row["receipt"] is None
        (lease,) = row["leases"]
        assert lease == {"pid": os.getpid(), "uid": os.getuid(), "session": f"0x{client.session:016x}", "access": "rw", "locked": True, "in_place": False}
        client.unlock(grant["slot"])
        assert daemon.rpc("hbm.show", {"sel": "id:" + f"0x{grant['buffer']:016x}"})[0]["leases"][0]["locked"] is False
        (session,) = daemon.rpc("hbm.sessions")
        assert session["client"] == "rows" and session["leases"] == 1 and session["pid"] == os.getpid()
        assert daemon.rpc("hbm.ls", {"glob": "rows/*", "group": "other"}) == []
        assert daemon.rpc("hbm.ls", {"glob": "none*"}) == []
        with pytest.raises(RpcError) as caught:
            daemon.rpc("hbm.show", ["none"])
        assert caught.value.name == "NOT_FOUND" and caught.value.code == -4
        with pytest.raises(RpcError) as caught:
            daemon.rpc("hbm.free", ["rows/w"])
        assert caught.value.name == "BUSY" and str(os.getpid()) in caught.value.message


def test_an_operation_answers_at_once_or_at_its_end(daemon):
    with Client(daemon.socket) as client:
        client.hello()
        grant, fd = client.alloc(1 << 20, "moved", flags=4)
        if fd is not None:
            os.close(fd)
        client.call("detach", lease=grant["lease"])
        op = daemon.rpc("hbm.offload", {"sel": "moved", "to": "disk", "async": True})["op"]
        ended = daemon.rpc("hbm.wait", {"op": op, "timeout_seconds": 30})
        assert ended["state"] == "done" and ended["rows"][0]["tier"] == "disk" and ended["error"] is None
        (row,) = daemon.rpc("hbm.restore", {"sel": "moved"})
        assert row["tier"] == "device" and row["size"] == 1 << 20
        assert [each["state"] for each in daemon.rpc("hbm.ops")] == ["done", "done"]
        (row,) = daemon.rpc("hbm.hash", ["moved"])
        assert len(row["hash"]) == 16 and row["size"] == 1 << 20
        with pytest.raises(RpcError) as caught:
            daemon.rpc("hbm.wait", {"op": "0x12345"})
        assert caught.value.name == "NOT_FOUND"
        assert daemon.rpc("hbm.free", ["moved"])[0]["name"] == "moved"


def closed(needed, /, **members):
    """An object of these members, extensions aside."""
    return {"type": "object", "required": needed, "properties": members, "patternProperties": {"^x-": {}}, "additionalProperties": False}


TEXT, NAME, SCHEMA = {"type": "string"}, {"type": "string", "minLength": 1}, {"$ref": "http://json-schema.org/draft-07/schema#"}
DESCRIPTOR = closed(["name", "schema"], name=NAME, summary=TEXT, description=TEXT, schema=SCHEMA, required={"type": "boolean"})
METHOD = closed(["name", "params", "result"], name=NAME, summary=TEXT, description=TEXT, params={"type": "array", "items": DESCRIPTOR},
                paramStructure={"enum": ["by-position", "by-name", "either"]}, result=DESCRIPTOR)
ERROR = {"type": "object", "required": ["code", "message"], "properties": {"code": {"type": "integer"}, "message": TEXT, "data": {}},
         "additionalProperties": False}
# What the meta-schema of the OpenRPC specification 1.3 (spec.open-rpc.org) asks of a document, as far as ours has such parts.
OPENRPC = closed(["openrpc", "info", "methods"], openrpc={"pattern": r"^1\.3\.[0-9]+$"},
                 info=closed(["title", "version"], title=TEXT, version=TEXT, description=TEXT), methods={"type": "array", "items": METHOD},
                 components=closed([], schemas={"type": "object", "additionalProperties": SCHEMA},
                                   errors={"type": "object", "additionalProperties": ERROR}))


def test_discovery_is_an_openrpc_document(daemon):
    document = daemon.rpc("rpc.discover")
    validator = pytest.importorskip("jsonschema").Draft7Validator(OPENRPC)
    assert [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(document)] == []
    assert len({method["name"] for method in document["methods"]}) == len(document["methods"])
    for method in document["methods"]:  # by position, what may be left out comes last
        needed = [param["required"] for param in method["params"]]
        assert needed == sorted(needed, reverse=True), method["name"]
    document["methods"][0]["params"] = [{"name": "x"}]
    assert not validator.is_valid(document)


# What openrpc of PyPI, a framework for servers that describe themselves so, does not read of a document as it stands there.
READER = """
import json, sys
from openrpc import OpenRPC
def unlike(ours, read, path):
    if isinstance(ours, dict) and isinstance(read, dict):
        return [line for name in ours for line in unlike(ours[name], read.get(name), f"{path}/{name}")]
    if isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        return [line for i, (one, other) in enumerate(zip(ours, read)) for line in unlike(one, other, f"{path}/{i}")]
    return [] if ours == read else [f"{path}: {ours!r} is read as {read!r}"]
document = json.load(sys.stdin)
print(*unlike(document, OpenRPC.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True), ""), sep="\\n")
"""


@with_peers
def test_discovery_is_read_by_another_implementation_of_openrpc(daemon):
    """What it does not know is our extension, which the specification has begin with x-."""
    fetch("openrpc", "==11.1.1")

    def unread(document):
        ended = subprocess.run([sys.executable, "-c", READER], env={**os.environ, "PYTHONPATH": str(PIP)}, input=json.dumps(document), text=True,
                               capture_output=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.split("\n")[:-1]

    document = daemon.rpc("rpc.discover")
    assert [line for line in unread(document) if "/x-permission: " not in line] == []
    document["methods"][0]["paramStructures"] = "either"
    assert "/methods/0/paramStructures: 'either' is read as None" in unread(document)


EXAMPLE = [sys.executable, str(ROOT / "client" / "python" / "examples" / "rpc.py")]


def test_the_example_in_a_hundred_lines_calls_is_refused_and_follows(daemon):
    environment = {**os.environ, "HBM_RUNTIME_DIR": str(daemon.runtime_dir)}
    put(daemon, "w", bytes(5000))

    def run(*words):
        return subprocess.run([*EXAMPLE, *words], env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert [row["name"] for row in json.loads(run("hbm.ls", 'glob="w"').stdout)] == ["w"]
    assert json.loads(run("hbm.offload", 'sel="w"', 'to="host"', "force=true").stdout)[0]["tier"] == "host"
    found = run("hbm.show", 'sel="none"')
    assert (found.returncode, found.stdout) == (1, "") and "none" in found.stderr
    with subprocess.Popen(EXAMPLE, env=environment, stdout=subprocess.PIPE, text=True) as follower:
        assert re.fullmatch(r"device 0, .* is ready\n", follower.stdout.readline())
        lines = iter(follower.stdout.readline, "")
        names = []

        def make_events():
            names.append(f"w{len(names)}")
            put(daemon, names[-1], bytes(10))

        make_events()
        reader = threading.Thread(target=lambda: next((line for line in lines if " buffer.allocated " in line), None), daemon=True)
        reader.start()
        while reader.is_alive():  # it may not have subscribed yet
            make_events()
            reader.join(0.1)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 0
    found = subprocess.run([*EXAMPLE, "hbm.ls"], env={**environment, "HBM_RUNTIME_DIR": str(daemon.home / "none")}, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "No such file" in found.stderr


def members(value):
    """All names of members in it, however deep."""
    if isinstance(value, list):
        return set().union(*map(members, value))
    return set(value).union(*map(members, value.values())) if isinstance(value, dict) else set()


def described(document, method):
    """The words of what the document says of an answer, and of the rows that it names."""
    rows, said, todo = document["components"]["schemas"], [], [method["result"]["summary"]]
    while todo:
        said.append(todo.pop())
        todo += [rows[name]["description"] for name in re.findall(r"(\w+) rows?\b", said[-1]) if name in rows]
    return set(re.findall(r"\w+", " ".join(said)))


def test_the_manual_has_every_method_and_error_of_the_discovery_document(daemon):
    document, page = daemon.rpc("rpc.discover"), (BUILD / "hbm-rpc.7").read_text().splitlines()
    assert not [method["name"] for method in document["methods"] if f".B {method['name']}" not in page]
    words = {line.split()[1] for line in page if line.startswith(".BR ")}
    assert not {name for name, error in document["components"]["errors"].items() if error["code"] > -1000} - words
    assert {param["name"] for method in document["methods"] for param in method["params"]} <= words


def test_every_member_of_an_answer_is_in_the_discovery_document(daemon, child):  # noqa: F811
    load_layers(daemon)
    put(daemon, "w", bytes(5000))
    document, answers, kept = daemon.rpc("rpc.discover"), {}, []

    def hold(say):
        kept.append(Client(daemon.socket))
        kept[0].hello()
        kept.append(kept[0].attach(name="m/layers.0.weight"))
        say()

    def ask(method, **params):
        answers.setdefault(method, []).append(daemon.rpc(method, params))
        return answers[method][-1]

    holder = child(hold)
    holder.heard()
    for method in ("status", "accounts", "devices", "who", "models", "ls", "config"):
        ask(f"hbm.{method}")
    for method in ("show", "hash", "why_not_free"):
        ask(f"hbm.{method}", sel="m/*")
    ask("hbm.kick", session=ask("hbm.sessions")[-1]["session"])
    ask("hbm.sessions")
    holder.kill()
    daemon.wait_for(lambda: not daemon.rpc("hbm.sessions"))
    ask("hbm.compress", sel="m/layers.1.weight", codec="int8", mode="copy", **{"as": "copy"})
    ask("hbm.compress", sel="m/layers.1.weight", codec="fp16", mode="park")
    ask("hbm.compress", sel="m/layers.2.weight", codec="fp16")
    ask("hbm.show", sel="m/*")
    ask("hbm.decompress", sel="m/*")
    ask("hbm.prefetch", sel="w")
    op = ask("hbm.offload", sel="w", to="disk", **{"async": True})["op"]
    ask("hbm.wait", op=op)
    ask("hbm.cancel", op=op)
    ask("hbm.restore", sel="w")
    ask("hbm.sleep", model="m", codec="fp16")
    ask("hbm.wake", model="m")
    ask("hbm.priority", sel="w", priority="3")
    ask("hbm.rename", name="w", to="v")
    ask("hbm.free", sel="v")
    ask("hbm.drain")
    ask("hbm.rm", model="m")
    ask("hbm.ops")
    ask("hbm.events")
    for method in document["methods"]:
        unsaid = members(answers.pop(method["name"], None)) - described(document, method)
        assert not unsaid, (method["name"], unsaid)
    assert not answers


def test_the_configuration_says_where_each_value_came_from(daemon):
    rows = {row["key"]: row for row in daemon.rpc("hbm.config")}
    assert rows["device"]["value"] == DEVICE and rows["device"]["source"] != rows["admin_group"]["source"]
