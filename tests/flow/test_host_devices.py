"""Host memory served as two devices: what several GPUs need can be tried out anywhere."""
import os

from helpers import MIB, Client, ctl_done, get, hash_of, host_only, load_layers, put, refused, row_of, serves
from peers import TWO, devices, tier_row, used_on
from test_restart import kill_and_wait

@host_only
def test_two_host_devices_share_the_memory_of_one(make_daemon):
    one = devices(make_daemon(config="device_bytes = 1GiB\nhost_bytes = 512MiB\n").start())
    two = devices(make_daemon(config=TWO + "device_bytes = 1GiB\nhost_bytes = 512MiB\n").start())
    assert list(one) == ["host"] and list(two) == ["host", "host-1"]
    for tier in ("device", "host"):
        assert {tier_row(row, tier)["capacity"] for row in two.values()} == {tier_row(one["host"], tier)["capacity"] // 2}
    assert len({row["worker_pid"] for row in two.values()}) == 2


@host_only
def test_a_client_chooses_among_host_devices_and_the_books_are_kept_of_each(make_daemon):
    daemon = make_daemon(config=TWO).start()
    with Client(daemon.socket) as client:
        assert client.hello()["n_devices"] == 2
        assert client.call("device", index=1).fields["uuid"] == "host-1"
        grant, fd = client.alloc(MIB, "w", device=1)
        os.close(fd)
        assert grant["device"] == 1 and used_on(daemon, "host-1") >= MIB and used_on(daemon, "host") == 0
        assert row_of(daemon, "w")["device"] == "host-1"
        with refused("NO_DEVICE"):
            client.alloc(MIB, device=2)


@host_only
def test_memory_of_each_host_device_moves_and_survives_the_owner(make_daemon):
    """FAULTS 24, 26: a worker that is killed is its own device's matter."""
    daemon = make_daemon(supervise=True, config=TWO).start()
    load_layers(daemon, "a", 4, 4096, "--device", "host")
    load_layers(daemon, "b", 4, 4096, "--device", "1")
    before = hash_of(daemon, "*")
    held = used_on(daemon, "host-1")
    ctl_done(daemon, "offload", "model:b", "--to", "disk", "--force")
    assert used_on(daemon, "host-1") == 0 and used_on(daemon, "host") and used_on(daemon, "host-1", "disk")
    ctl_done(daemon, "restore", "model:b")
    kill_and_wait(daemon)
    assert list(devices(daemon)) == ["host", "host-1"] and used_on(daemon, "host-1") == held
    os.kill(devices(daemon)["host-1"]["worker_pid"], 9)
    assert hash_of(daemon, "a/*").items() <= before.items()
    daemon.wait_for(lambda: devices(daemon)["host-1"]["worker_restarts"] == 1)
    assert hash_of(daemon, "*") == before and devices(daemon)["host"]["worker_restarts"] == 0


@host_only
def test_a_drain_of_one_host_device_leaves_the_other(make_daemon):
    daemon = make_daemon(config=TWO).start()
    load_layers(daemon, "a", 2, 4096, "--device", "0")
    load_layers(daemon, "b", 2, 4096, "--device", "host-1")
    ctl_done(daemon, "drain", "--device", "host-1")
    assert {row["tier"] for row in daemon.rpc("hbm.ls", {"glob": "b/*"})} == {"host"}
    assert {row["tier"] for row in daemon.rpc("hbm.ls", {"glob": "a/*"})} == {"device"}
    assert devices(daemon)["host-1"]["state"] == "drained" and serves(daemon)


@host_only
def test_after_a_restart_with_another_number_memory_is_where_it_was(make_daemon):
    """FAULTS 30: more devices are added; one that memory lies on stays, one that is empty goes."""
    daemon = make_daemon(supervise=True, config="host_devices = 1\n").start()
    conf = daemon.home / "hbmd.conf"
    put(daemon, "w", b"w" * MIB)
    for number, expected in ((3, ["host", "host-1", "host-2"]), (2, ["host", "host-1"])):
        conf.write_text(f"host_devices = {number}\n")
        kill_and_wait(daemon)
        daemon.wait_for(lambda: list(devices(daemon)) == expected and all(row["state"] == "ready" for row in devices(daemon).values()))
        assert get(daemon, "w") == b"w" * MIB
    load_layers(daemon, "b", 2, 4096, "--device", "1")
    conf.write_text("host_devices = 1\n")
    kill_and_wait(daemon)
    assert list(devices(daemon)) == ["host", "host-1"] and used_on(daemon, "host-1")
    ctl_done(daemon, "rm", "b")
    kill_and_wait(daemon)
    assert list(devices(daemon)) == ["host"] and get(daemon, "w") == b"w" * MIB


@host_only
def test_a_listener_has_the_host_devices_that_it_was_given(make_daemon):
    daemon = make_daemon()
    pods = daemon.home / "pods"
    (daemon.home / "hbmd.conf").write_text(f"{TWO}[listener pods]\ndirectory = {pods}\ndevices = host-1\n")
    daemon.options += ["--config", str(daemon.home / "hbmd.conf")]
    daemon.start()
    with Client(pods / "hbmd.sock") as pod:
        assert pod.hello()["n_devices"] == 1
        grant, fd = pod.alloc(MIB, "w")
        os.close(fd)
        assert grant["device"] == 0 and used_on(daemon, "host-1") >= MIB and used_on(daemon, "host") == 0
        with refused("NO_DEVICE"):
            pod.alloc(MIB, device=1)
