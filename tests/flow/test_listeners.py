"""Several client sockets: owner means (listener, uid), and what is not yours never was (FAULTS 12, 29, 30)."""
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess

import pytest

import wire
from conftest import BUILD, DEVICE, RpcError
from helpers import (MIB, OTHER, Client, Program, as_user, client_program, ctl_done, ctl_refused, deaf, events, host_only, layers, let_others_in,
                     refused, root_only, safetensors, serves, settled, used)
from tables import sealed
from wire import ONE_WAY, KEEP, MESSAGES, SHARED, STRUCTS, Refused

STRANGER = OTHER - 1


class Listeners:
    """A daemon with the listeners `pods` and `other` beside its main socket, and what is in hbmd.conf besides."""

    def __init__(self, make_daemon, top="", pods="", other="", **how):
        self.daemon = make_daemon(config="device = host\n", **how)
        self.home = self.daemon.home
        self.write(top, pods, other)

    def write(self, top="", pods="", other=""):
        (self.home / "hbmd.conf").write_text(
            f"{top}\n[listener pods]\ndirectory = {self.home}/pods\nsocket_mode = 0666\n{pods}\n"
            f"[listener other]\ndirectory = {self.home}/other\n{other}\n")

    def start(self):
        self.daemon.start()
        let_others_in(self.daemon)
        return self

    def client(self, name):
        path = self.daemon.socket if name == "main" else self.home / name / "hbmd.sock"
        link = Client(path)
        link.hello(name)
        return link


@pytest.fixture
def listeners(make_daemon):
    return Listeners(make_daemon).start()


def test_a_name_behind_one_socket_is_nothing_behind_another(listeners):
    daemon = listeners.daemon
    with listeners.client("pods") as pod, listeners.client("other") as other, listeners.client("main") as main:
        ids = {link.alloc(4096, "w")[0]["buffer"] for link in (pod, other, main)}
        assert len(ids) == 3
        names = {row["name"] for row in daemon.rpc("hbm.ls")}
        uid = os.geteuid()
        assert names == {"w", f"~pods:{uid}/w", f"~other:{uid}/w"}
        grant, _ = pod.alloc(4096, "secret", mode=0o666)
        for sel in ("secret", f"~{uid}/secret", f"~pods:{uid}/secret"):
            with refused("NOT_FOUND"):
                other.attach(sel)
        with refused("NOT_FOUND"):
            other.attach(id=grant["buffer"])
        assert main.attach(f"~pods:{uid}/secret")[0]["buffer"] == grant["buffer"]


def test_root_behind_a_listener_is_nobodys_administrator(listeners):
    with listeners.client("main") as main, listeners.client("pods") as pod:
        grant, _ = main.alloc(4096, "w")
        with refused("NOT_FOUND"):
            pod.attach(id=grant["buffer"])
        with refused("NOT_FOUND"):
            pod.call("free", id=grant["buffer"])
        with refused("DENIED", "administrators"):
            pod.alloc(4096, "x", flags=SHARED)
        main.alloc(4096, "everyones", flags=SHARED | KEEP)
        with refused("NOT_FOUND"):
            pod.attach("everyones")
    assert not (listeners.home / "pods" / "control.sock").exists()
    assert os.listdir(listeners.home / "pods") == ["hbmd.sock"]


def test_a_listeners_socket_has_its_mode(listeners):
    assert stat.S_IMODE(os.stat(listeners.home / "pods" / "hbmd.sock").st_mode) == 0o666
    assert stat.S_IMODE(os.stat(listeners.home / "other" / "hbmd.sock").st_mode) == 0o660


def test_a_device_that_a_listener_does_not_have_is_no_device(make_daemon):
    listeners = Listeners(make_daemon, pods="devices = GPU-of-another-host").start()
    with Client(listeners.home / "pods" / "hbmd.sock") as pod, listeners.client("main") as main:
        assert pod.hello()["n_devices"] == 0
        main.call("device", index=0)
        answers = []
        for index in (0, 1, wire.DEVICE_ANY):
            with refused("NO_DEVICE", str(index)):
                pod.call("device", index=index)
            with pytest.raises(Refused) as caught:
                pod.alloc(4096, device=index)
            answers.append((caught.value.status, caught.value.detail))
        assert len(set(answers)) == 1
    assert "GPU-of-another-host" in listeners.daemon.log


def test_an_owner_behind_a_listener_has_what_it_had_after_a_restart(make_daemon):
    listeners = Listeners(make_daemon, supervise=True).start()
    daemon = listeners.daemon
    with listeners.client("pods") as pod:
        grant, fd = pod.alloc(MIB, "w", flags=KEEP)
        if DEVICE == "host":
            os.pwrite(fd, b"w" * MIB, 0)
        os.close(fd)
    before = daemon.rpc("hbm.hash", {"sel": f"id:0x{grant['buffer']:016x}"})
    daemon.kill9()
    daemon.wait_ready()
    let_others_in(daemon)
    with listeners.client("other") as other, refused("NOT_FOUND"):
        other.attach(id=grant["buffer"])
    with listeners.client("pods") as pod:
        again, fd = pod.attach("w")
        assert again["buffer"] == grant["buffer"]
        assert DEVICE != "host" or os.pread(fd, 1, 0) == b"w"
        os.close(fd)
    assert daemon.rpc("hbm.hash", {"sel": f"id:0x{grant['buffer']:016x}"}) == before


def test_what_a_removed_listener_left_is_an_administrators_to_free(make_daemon):
    listeners = Listeners(make_daemon, supervise=True).start()
    daemon = listeners.daemon
    with listeners.client("pods") as pod:
        pod.alloc(MIB, "w", flags=KEEP)
    (listeners.home / "hbmd.conf").write_text("")
    daemon.kill9()
    daemon.wait_ready()
    row = daemon.rpc("hbm.ls")[0]
    assert row["name"].startswith("~0x") and row["name"].endswith(f":{os.geteuid()}/w")
    ctl_done(daemon, "free", row["name"])
    assert used(daemon) == 0


def test_a_reload_leaves_the_listeners_as_they_are_and_says_so(listeners):
    """FAULTS 30."""
    daemon = listeners.daemon
    listeners.write("offload_limit = 11", pods="account_buffers = 1")
    os.kill(daemon.pid, 1)
    daemon.wait_for(lambda: "[listener]" in daemon.log)
    daemon.wait_for(lambda: any(row["key"] == "offload_limit" and row["value"] == "11" for row in daemon.rpc("hbm.config")))
    with listeners.client("pods") as pod:
        pod.alloc(4096)
        pod.alloc(4096)


@pytest.mark.parametrize("what", ["a file", "a link", "writable by others", "the runtime directory"])
def test_a_listener_whose_directory_is_not_safe_is_not_served_and_the_others_are(make_daemon, what):
    """FAULTS 29: who has the directory mounted must not keep the daemon from starting."""
    listeners = Listeners(make_daemon)
    pods = listeners.home / "pods"
    if what == "the runtime directory":
        listeners.write()
        text = (listeners.home / "hbmd.conf").read_text()
        (listeners.home / "hbmd.conf").write_text(text.replace(f"{listeners.home}/pods", str(listeners.daemon.runtime_dir)))
    else:
        pods.mkdir(mode=0o755)
        if what == "a file":
            (pods / "hbmd.sock").write_text("precious")
        elif what == "a link":
            (pods / "hbmd.sock").symlink_to("/nowhere")
        else:
            pods.chmod(0o777)
    listeners.start()
    daemon = listeners.daemon
    assert serves(daemon) and "listener pods is not served" in daemon.log and events(daemon, "listener.failed")
    assert {row["listener"]: row["serves"] for row in daemon.rpc("hbm.status")["listeners"]} == {"main": True, "pods": False, "other": True}
    assert "listener pods: not served" in ctl_done(daemon, "status")
    with listeners.client("other") as other:
        other.alloc(4096)
    if what == "a file":
        assert (pods / "hbmd.sock").read_text() == "precious"


def test_a_stale_socket_of_a_listener_is_replaced(make_daemon):
    """FAULTS 29."""
    listeners = Listeners(make_daemon)
    (listeners.home / "pods").mkdir(mode=0o755)
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(listeners.home / "pods" / "hbmd.sock"))
    stale.close()
    listeners.start().client("pods").close()


def test_the_screens_name_the_listener_where_there_is_more_than_one(listeners):
    daemon = listeners.daemon
    uid = os.geteuid()
    with listeners.client("pods") as pod:
        pod.alloc(MIB, "w")
        assert f"pods:{uid}" in ctl_done(daemon, "sessions")
        assert "listener pods: sessions 1" in ctl_done(daemon, "status")
        assert f"~pods:{uid}/w" in ctl_done(daemon, "ls")
        assert "pods" in ctl_done(daemon, "show", f"~pods:{uid}/w")
        assert f"uid pods:{uid}" in ctl_done(daemon, "events")
        assert f"pods.directory = {listeners.home}/pods" in ctl_done(daemon, "config")


# ---- Accounts ----

def use(daemon, listener, uid):
    """{thing: (used, limit)} of an account; uid None: of the whole listener, as an account that is not there."""
    rows = {row["uid"]: row["things"] for row in daemon.rpc("hbm.accounts") if row["listener"] == listener}
    return {thing["thing"]: (thing["used"], thing["limit"]) if uid in rows else (0, None) for thing in rows.get(uid, rows[None])}


def test_hbmctl_in_a_listeners_directory_does_what_clients_may_and_says_where_the_rest_is_asked(listeners, tmp_path):
    def ctl(*args):
        return subprocess.run([BUILD / "hbmctl", "--runtime-dir", listeners.home / "pods", *args], capture_output=True, text=True, timeout=60,
                              check=False)

    model = safetensors(tmp_path / "in.safetensors", layers(2))
    for args in (("load", model, "--as", "m"), ("attach", "model:m"), ("get", "m/layers.0.weight", tmp_path / "w")):
        assert ctl(*args).returncode == 0
    saved = ctl("--json", "save", "m", tmp_path / "out.safetensors")
    assert saved.returncode == 0 and json.loads(saved.stdout)["files"] == 1, saved.stdout
    assert (tmp_path / "out.safetensors").read_bytes() == model.read_bytes()
    ctl_refused(ctl("ls"), 3, "serves clients alone", "hbmd's own directory")


def test_accounts_show_what_each_has_and_may_have(make_daemon):
    listeners = Listeners(make_daemon, "account_buffers = 7", pods="account_buffers = 5\ntotal_sessions = 9").start()
    daemon, uid = listeners.daemon, os.geteuid()
    with listeners.client("pods") as pod, listeners.client("main") as main:
        pod.alloc(2 * MIB)
        pod.alloc(2 * MIB)
        main.alloc(4096)
        pods = use(daemon, "pods", uid)
        assert pods["device_bytes"] == (4 * MIB, None) and pods["buffers"] == (2, 5) and pods["leases"] == (2, 131072)
        assert use(daemon, "pods", None)["sessions"] == (1, 9)
        assert use(daemon, "main", uid)["buffers"] == (1, 7) and use(daemon, "main", uid)["ops"][1] == 64
        assert "2 of 5" in ctl_done(daemon, "accounts")
    daemon.wait_for(lambda: settled(daemon) and not any(used for used, _ in use(daemon, "pods", uid).values()))


@pytest.mark.parametrize("limit, ask", [
    ("account_device_bytes = 64KiB", lambda link: link.alloc(128 << 10)), ("total_device_bytes = 64KiB", lambda link: link.alloc(128 << 10)),
    ("account_buffers = 1", lambda link: [link.alloc(4096) for _ in range(2)]),
    ("account_leases = 1", lambda link: [link.alloc(4096) for _ in range(2)]),
    ("total_leases = 1", lambda link: [link.alloc(4096) for _ in range(2)])], ids=lambda x: x if isinstance(x, str) else "")
def test_a_limit_of_a_listener_is_held_and_named_and_is_not_anothers(make_daemon, limit, ask):
    listeners = Listeners(make_daemon, "memory_wait_seconds = 0.1", pods=limit).start()
    with listeners.client("pods") as pod, listeners.client("other") as other:
        with refused("LIMIT", limit.split()[0]):
            ask(pod)
        ask(other)
        pod.call("device")


def test_an_allocation_waits_for_what_the_account_lets_go_of(make_daemon):
    """Admission waits, within memory_wait_seconds, for the account's own to come free."""
    daemon = make_daemon(config="account_device_bytes = 2MiB\nmemory_wait_seconds = 20\n").start()
    with Client(daemon.socket) as link:
        link.hello()
        first, _ = link.alloc(2 * MIB)
        serial = link.send("alloc", spec={"size": 2 * MIB, "device": wire.DEVICE_ANY, "mode": 0o600})
        link.call("device")
        link.call("detach", lease=first["lease"])
        assert link.reply(serial).fields["grant"]["size"] == 2 * MIB
    with Client(daemon.socket) as link:
        link.hello()
        with refused("LIMIT", "account_device_bytes"):
            link.alloc(4 * MIB)  # more than it may ever have: no wait


def test_an_account_that_comes_near_its_limit_is_told_of_once(make_daemon):
    daemon = make_daemon(config="account_buffers = 10\n").start()
    with Client(daemon.socket) as link:
        link.hello()
        leases = [link.alloc(4096)[0]["lease"] for _ in range(8)]
        assert not events(daemon, "account.near_limit")
        leases += [link.alloc(4096)[0]["lease"] for _ in range(2)]
        (event,) = events(daemon, "account.near_limit")
        assert "account_buffers is 10" in event["detail"] and event["uid"] == os.geteuid()
        for lease in leases:
            link.call("detach", lease=lease)
        for _ in range(9):
            link.alloc(4096)
        assert len(events(daemon, "account.near_limit")) == 2


# ---- No oracle ----

NEVER = 0x00ab0000deadbeef
NAMES = {"id", "name", "sel", "lease", "op", "session"}


def refusal(call):
    with pytest.raises((Refused, RpcError)) as caught:
        call()
    error = caught.value
    return (error.status, error.detail) if isinstance(error, Refused) else (error.code, error.message, str(error.data))


def same(ask, real, never):
    """The refusal of what is another's, and of what never was, are the same but for the words that were asked."""
    def told(value):
        words = str(refusal(lambda: ask(value))).replace(str(value), "<>")
        return words.replace(f"0x{value:016x}", "<>") if isinstance(value, int) else words

    assert told(real) == told(never)


def ask_of(link, message, field):
    """A request of that message with the field's value, otherwise sound."""
    rest = {"attach": {"timeout_ms": 100}, "attach_model": {"timeout_ms": 100}, "commit": {"commit": 1}, "offload": {"tier": 1},
            "compress": {"encoding": {"codec": 1}}, "window": {"groups": 1}}.get(message, {})
    return lambda value: link.call(message, **{field: value, **rest})


@pytest.fixture
def secrets(listeners):
    """What `pods` has of each kind, by the field that would name it."""
    link = listeners.client("pods")
    grant, _ = link.alloc(MIB, "secret", flags=KEEP, group="g", mode=0o600)
    link.unlock(grant["slot"])
    op = link.call("offload", sel="secret", tier=1).fields["op"]
    link.let_go_when_asked(grant["slot"])
    link.call("op_wait", op=op, timeout_ms=5000)
    yield {"id": grant["buffer"], "lease": grant["lease"], "op": op, "name": "secret", "session": link.session}
    link.close()


def strangers(listeners):
    yield listeners.client("other")
    for name in ("main", "pods") if os.geteuid() == 0 else ():
        with as_user(STRANGER):
            link = listeners.client(name)
        yield link


def test_no_message_tells_a_stranger_what_is_there(listeners, secrets):
    """FAULTS 12: the same bytes as for what never was, from another listener and from another user."""
    uid, asked = os.geteuid(), set()
    for link in strangers(listeners):
        with link:
            for message, row in MESSAGES.items():
                fields = {field[0] for field in row["request"].fields} & NAMES
                if message in ("hello", "resume", "publish") or message in ONE_WAY or row["opcode"] >= 64:
                    continue  # resume: below; publish makes its own of that name; what has no answer tells nothing
                for field in fields:
                    ask = ask_of(link, message, field)
                    pairs = [(secrets.get(field), NEVER)]
                    if field == "name":
                        pairs = [("secret", "absent"), (f"~{uid}/secret", f"~{uid}/absent"), (f"~pods:{uid}/secret", f"~pods:{uid}/absent")]
                    elif field == "sel":
                        pairs = [("secret", "absent"), (f"~pods:{uid}/secret", f"~pods:{uid}/absent"), ("sec*", "abs*"), ("group:g", "group:h"),
                                 (f"id:0x{secrets['id']:016x}", f"id:0x{NEVER:016x}"), ("model:secret", "model:absent")]
                    for real, never in pairs:
                        same(ask, real, never)
                    asked.add((message, field))
    assert {message for message, _ in asked} >= {"attach", "attach_model", "free", "detach", "commit", "offload", "restore", "compress",
                                                 "decompress", "op_wait", "op_cancel", "window"}


def test_a_transfer_tells_a_stranger_nothing(listeners, secrets, tmp_path):
    """FAULTS 12."""
    path = tmp_path / "out"
    path.write_bytes(b"")
    for link in strangers(listeners):
        with link, open(path, "r+b") as file:
            def ask(buffer):
                fd = sealed(STRUCTS["wire_range"].pack({"buffer": buffer, "bytes": 4096}))
                try:
                    return link.call("transfer", [file.fileno(), fd], n_ranges=1, write=1)
                finally:
                    os.close(fd)
            same(ask, secrets["id"], NEVER)


@root_only
def test_no_method_tells_a_stranger_what_is_there(listeners, secrets):
    """FAULTS 12, over control.sock: each method that takes a name or an id."""
    daemon, uid = listeners.daemon, os.geteuid()
    methods = daemon.rpc("rpc.discover")["methods"]
    ids = {"op": (f"0x{secrets['op']:016x}", f"0x{NEVER:016x}"), "session": (f"0x{secrets['session']:016x}", f"0x{NEVER:016x}")}
    names = [("secret", "absent"), (f"~{uid}/secret", f"~{uid}/absent"), (f"~pods:{uid}/secret", f"~pods:{uid}/absent"),
             (f"id:0x{secrets['id']:016x}", f"id:0x{NEVER:016x}")]
    fill = {"codec": "fp16", "to": "host", "as": "x"}
    asked = set()
    with as_user(STRANGER), daemon.operator() as operator:
        for method in methods:
            for param in method["params"]:
                if param["name"] not in ("sel", "model", "name", "op", "session"):
                    continue
                rest = {other["name"]: fill.get(other["name"], "x") for other in method["params"] if other["required"] and other != param}
                for real, never in [ids[param["name"]]] if param["name"] in ids else names:
                    same(lambda value: operator.rpc(method["name"], {param["name"]: value, **rest}), real, never)
                asked.add(method["name"])
        for method in ("hbm.ls", "hbm.models", "hbm.sessions", "hbm.ops", "hbm.events"):
            assert "secret" not in str(operator.rpc(method)) and "pods" not in str(operator.rpc(method))
        accounts = operator.rpc("hbm.accounts")
        assert {(row["listener"], row["uid"]) for row in accounts} <= {("main", STRANGER)}
        assert [row["listener"] for row in operator.rpc("hbm.status")["listeners"]] == ["main"]
    assert asked >= {"hbm.show", "hbm.hash", "hbm.free", "hbm.rm", "hbm.rename", "hbm.wait", "hbm.cancel", "hbm.sleep", "hbm.kick"}


# ---- A container: nothing but the socket's directory ----

class Contained(Program):
    """client_program.c in namespaces of its own, user 0 there, with only the listener's directory of all that is the daemon's."""

    def __init__(self, binary, listeners, user_namespace):
        home = listeners.home
        inside = f"mount --bind -o ro {home}/pods /mnt && mount -t tmpfs none {home} && exec {binary} /mnt"
        flags = ["-p", "-i", "-n", "-m", "-u", "--fork", "--mount-proc", *(["-U", "-r"] if user_namespace else [])]
        self.process = subprocess.Popen(["unshare", *flags, "sh", "-c", inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.ask("open", 0)

    def kill_inside(self, daemon):
        """SIGKILL to the client alone, by the number that the host knows it by."""
        os.kill(daemon.rpc("hbm.sessions")[0]["pid"], signal.SIGKILL)


@host_only
@root_only
@pytest.mark.parametrize("user_namespace", [False, True], ids=["root", "user namespace"])
def test_a_container_needs_only_the_directory_of_its_socket(make_daemon, client_program, user_namespace):
    """FAULTS 16, CASES 29: unshared pid, ipc, net, mount, uts (and user) namespaces, with a fresh /proc."""
    listeners = Listeners(make_daemon, supervise=True).start()
    daemon = listeners.daemon
    with listeners.client("pods") as pod:
        grant, fd = pod.alloc(MIB, "w", flags=KEEP, mode=0o644)
        os.pwrite(fd, b"w" * MIB, 0)
        os.close(fd)
        pod.unlock(grant["slot"])
    inside = Contained(client_program, listeners, user_namespace)
    index, _, _ = inside.attach("w")
    assert inside.ask("peek", index, MIB - 1) == [str(ord("w"))]
    own, _, _ = inside.alloc("own", MIB)
    inside.ask("fill", own, 7)
    (session,) = daemon.rpc("hbm.sessions")
    assert session["listener"] == "pods" and session["uid"] == os.geteuid() and session["leases"] == 2
    daemon.kill9()  # its owner goes, and comes back: so does it
    daemon.wait_ready()
    assert inside.ask("peek", index, MIB - 1) == [str(ord("w"))]
    inside.ask("alloc", "more", MIB, 0, 0, "")
    inside.kill_inside(daemon)
    daemon.wait_for(lambda: settled(daemon))
    assert {row["name"] for row in daemon.rpc("hbm.ls")} == {f"~pods:{os.geteuid()}/w"} and used(daemon) == MIB
    inside.kill()


def test_an_account_that_nobody_uses_is_no_more_and_one_with_memory_stays(make_daemon):
    listeners = Listeners(make_daemon).start()
    daemon, uid = listeners.daemon, os.geteuid()

    def there(name):
        return any((row["listener"], row["uid"]) == (name, uid) for row in daemon.rpc("hbm.accounts"))

    with listeners.client("pods") as first, listeners.client("other") as second:
        first.grant(4096, "w", flags=KEEP)
        second.grant(4096)
        assert there("pods") and there("other")
    daemon.wait_for(lambda: not there("other"))
    assert there("pods")
    ctl_done(daemon, "free", f"~pods:{uid}/w")
    daemon.wait_for(lambda: not there("pods"))


# ---- Floods ----

def test_one_that_floods_and_never_reads_is_dropped_alone_at_its_accounts_bound(make_daemon):
    """FAULTS 9: answers pile up in its account, and go with it."""
    listeners = Listeners(make_daemon, pods="account_queue_bytes = 4KiB").start()
    daemon = listeners.daemon
    with listeners.client("other") as other:
        pods = [listeners.client("pods") for _ in range(3)]
        for link in pods:
            link.socket.settimeout(0.2)
            try:
                for _ in range(20000):
                    link.send("device", index=0)
            except (OSError, ConnectionError):
                pass
            other.call("device", index=0)
        daemon.wait_for(lambda: events(daemon, "client.dropped"))
        assert "account_queue_bytes" in events(daemon, "client.dropped")[0]["detail"]
        other.call("device", index=0)
        for link in pods:
            link.socket.close()
            link.page = None
    daemon.wait_for(lambda: use(daemon, "pods", os.geteuid())["queue_bytes"][0] == 0)


def test_file_descriptors_that_are_not_read_are_bounded_for_all_links_of_a_user(make_daemon):
    """FAULTS 9: the kernel counts them against the daemon, for all its clients together."""
    listeners = Listeners(make_daemon, pods="account_unread_fds = 20").start()
    daemon, uid = listeners.daemon, os.geteuid()
    with listeners.client("other") as other, listeners.client("pods") as first:
        first.alloc(4096, "w")
        links = [listeners.client("pods") for _ in range(3)]
        for link in links:
            with contextlib.suppress(BrokenPipeError):  # dropped already
                for _ in range(10):
                    link.send("attach", name="w", timeout_ms=1000)
        daemon.wait_for(lambda: events(daemon, "client.dropped"))
        assert "account_unread_fds" in events(daemon, "client.dropped")[0]["detail"]
        assert use(daemon, "pods", uid)["unread_fds"][0] <= 20
        other.alloc(4096)
        for link in links:
            link.page = None
            link.socket.close()
        daemon.wait_for(lambda: use(daemon, "pods", uid)["unread_fds"][0] < 10)
        first.attach("w")


@pytest.mark.parametrize("end", ["close", "close what it sent us", "gone"])
def test_what_lies_unread_in_the_socket_of_an_ended_link_counts_until_its_client_reads_or_closes(make_daemon, end):
    """FAULTS 8, 9: or a client could have as much there as it likes, by being dropped again and again; or for ever, by
    sending us its own end."""
    listeners = Listeners(make_daemon).start()
    daemon, uid = listeners.daemon, os.geteuid()
    with listeners.client("pods") as first:
        first.grant(4096, "w")
        link = listeners.client("pods")
        for _ in range(10):
            link.send("attach", name="w", timeout_ms=1000)
        daemon.wait_for(lambda: use(daemon, "pods", uid)["leases"][0] == 11)
        with deaf(daemon):
            link.send_raw(b"no packet")
            if "sent" in end:
                link.send("device", [link.socket.fileno()])
        daemon.wait_for(lambda: events(daemon, "session.gone"))
        assert use(daemon, "pods", uid)["unread_fds"][0] >= 10
        if end == "gone":
            assert "shorter than a header" in link.gone()
        else:
            link.socket.close()
        daemon.wait_for(lambda: use(daemon, "pods", uid)["unread_fds"][0] < 10)
        link.page = None

