"""What Prometheus sees: the text, the page, the rules; with promtool and Prometheus itself where they are."""
import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest

from conftest import BUILD, ROOT
from helpers import MIB, Client, child, ctl_done, ctl_json, ctl_refused, load_layers, module_daemon, shared  # noqa: F401

RULES = ROOT / "packaging" / "prometheus" / "hbm.rules.yml"
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? ([0-9.e+-]+)')


def find(name):
    return shutil.which(name) or shutil.which(name, path=str(ROOT / "build" / "unpacked" / "usr" / "bin"))


def tool(name):
    found = find(name)
    if not found:
        pytest.skip(f"waived: no {name} here; tests/tools/install-deps.sh check brings it")
    return found


def samples(text):
    """{name{labels}: value} of the text format; every name has its HELP and TYPE before it, and its samples stand together."""
    found, family = {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert line.split()[2] != family
            family, typed = line.split()[2], False
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family and line.split()[3] in ("counter", "gauge")
            assert (line.split()[3] == "counter") == family.endswith("_total")
            typed = True
        else:
            match = SAMPLE.fullmatch(line)
            assert match and match[1] == family and typed, line
            key = line.rpartition(" ")[0]
            assert key not in found, line
            found[key] = float(match[3])
    return found


def metrics(daemon):
    return samples(ctl_done(daemon, "metrics"))


@contextlib.contextmanager
def page(runtime_dir):
    """hbmctl metrics --listen; the port."""
    process = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(runtime_dir), "metrics", "--listen", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/metrics\n", process.stdout.readline())[1])
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(scope="module", autouse=True)
def unanswered(tmp_path_factory):
    """A scrape of a daemon that never answers, begun while the other tests run."""
    folder = tmp_path_factory.mktemp("mute")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(folder / "control.sock"))
        mute.listen()
        with page(folder) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            link.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            yield link


@pytest.fixture(scope="module", autouse=True)
def prometheus(module_daemon, tmp_path_factory):
    """Its HTTP interface, as a function; it scrapes while the other tests run. None where it is not installed."""
    if not find("prometheus"):
        yield None
        return
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        web = probe.getsockname()[1]

    def ask(path, **query):
        assert server.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return {"result": []}

    with page(module_daemon.runtime_dir) as port, open(folder / "log", "wb") as log:
        (folder / "prometheus.yml").write_text(
            f"rule_files: ['{RULES}']\nscrape_configs:\n- job_name: hbm\n  scrape_interval: 500ms\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n")
        server = subprocess.Popen([find("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                   f"--web.listen-address=127.0.0.1:{web}"], stdout=log, stderr=log)
        yield ask
        server.terminate()
        server.wait(30)


def fetch(port, path="/metrics", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def test_the_metrics_say_what_status_says(shared):
    load_layers(shared)
    ctl_refused(shared.ctl("show", "nothing"), 1)
    found, status = metrics(shared), shared.rpc("hbm.status")
    assert found["hbm_up"] == 1 and found[f'hbm_build_info{{version="{status["version"]}"}}'] == 1
    assert (found["hbm_buffers"], found["hbm_models"]) == (status["buffers"], status["models"]) == (4, 1)
    device = status["devices"][0]
    label = f'device="{device["uuid"]}"'
    for tier in device["tiers"]:
        assert found[f'hbm_tier_capacity_bytes{{{label},tier="{tier["tier"]}"}}'] == tier["capacity"]
        assert found[f'hbm_tier_used_bytes{{{label},tier="{tier["tier"]}"}}'] == tier["used"]
    for link in device["links"]:
        assert found[f'hbm_link_moved_bytes_total{{{label},link="{link["link"]}"}}'] == link["bytes_moved"]
    assert found[f"hbm_device_ready{{{label}}}"] == 1 and found['hbm_degraded{what="ledger"}'] == 0
    refusals = {row["error"]: row["n"] for row in status["refusals"]}
    assert found['hbm_refusals_total{error="NOT_FOUND"}'] == refusals["NOT_FOUND"] >= 1
    assert found['hbm_refusals_total{error="NO_MEMORY"}'] == refusals.get("NO_MEMORY", 0)
    assert ctl_json(shared, "metrics").keys() == status.keys()


def test_buffers_models_clients_and_errors_add_no_series(shared, child):
    before = set(metrics(shared))
    load_layers(shared, "m", 500, 1)

    def hang_up(say):
        link = Client(shared.socket)
        link.hello("engine")
        link.alloc(2 * MIB, "w")
        link.socket.close()
        say()

    victim = child(hang_up)
    victim.heard()
    shared.wait_for(lambda: metrics(shared)["hbm_quarantined_sessions"])
    ctl_refused(shared.ctl("rm", "nothing"), 1)
    found = metrics(shared)
    assert set(found) == before and found["hbm_buffers"] >= 500
    assert found["hbm_quarantined_bytes"] == 2 * MIB
    first = found["hbm_quarantined_age_seconds"]
    shared.wait_for(lambda: metrics(shared)["hbm_quarantined_age_seconds"] > first)
    victim.kill()
    shared.wait_for(lambda: metrics(shared)["hbm_quarantined_sessions"] == 0)
    assert metrics(shared)["hbm_quarantined_age_seconds"] == 0


def test_a_name_with_quotes_and_backslashes_is_a_label_all_the_same(shared, tmp_path):
    """Answered by a daemon that is none: devices of ours have no such names."""
    status = shared.rpc("hbm.status")
    status["devices"][0]["name"] = 'a "b" \\ c\nd'
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "control.sock"))
        server.listen()
        asker = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(tmp_path), "metrics"], stdout=subprocess.PIPE, text=True)
        link, _ = server.accept()
        link.recv(65536)
        link.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "result": status}).encode() + b"\n")
        text = asker.communicate(timeout=30)[0]
        link.close()
    [info] = [key for key in samples(text) if key.startswith("hbm_device_info")]
    assert 'name="a \\"b\\" \\\\ c\\nd"' in info


def test_a_page_on_the_loopback_address_has_the_same(shared):
    with page(shared.runtime_dir) as port:
        status, headers, text = fetch(port)
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert set(samples(text)) == set(metrics(shared))
        assert fetch(port, "/metrics?x=1")[0] == 200
        assert fetch(port, method="HEAD")[::2] == (200, "")
        assert fetch(port, "/")[0] == 404 and "/metrics" in fetch(port, "/")[2]
        assert fetch(port, method="POST")[0] == 405
        ctl_refused(shared.ctl("metrics", "--listen", port), 1, "port")
    ctl_refused(shared.ctl("metrics", "--listen", "65536"), 2, "65535")


def test_who_connects_and_asks_nothing_holds_up_nobody(shared):
    with page(shared.runtime_dir) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        idle[0].sendall(b"GET /metr")
        assert fetch(port)[0] == 200
        idle[1].sendall(b"x" * 9000)
        assert fetch(port)[0] == 200
        for one in idle:
            one.close()


def test_a_daemon_that_is_not_there_is_said_to_be_down(make_daemon):
    daemon = make_daemon()
    result = daemon.ctl("metrics")
    ctl_refused(result, 3, "hbmd")
    assert samples(result.stdout) == {"hbm_up": 0}
    with page(daemon.runtime_dir) as port:
        assert samples(fetch(port)[2]) == {"hbm_up": 0}
        daemon.start()
        assert samples(fetch(port)[2])["hbm_up"] == 1


def test_promtool_finds_nothing_to_say_of_the_metrics(shared):
    load_layers(shared)
    checked = subprocess.run([tool("promtool"), "check", "metrics"], input=ctl_done(shared, "metrics"), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_each_alert_fires_when_it_is_to_and_none_where_all_is_well(tmp_path):
    names = re.findall(r"alert: (\w+)", RULES.read_text())
    cases = (ROOT / "tests" / "prometheus" / "rules.yml").read_text()
    assert names and all(f'alertname="{name}"' in cases for name in names)
    (tmp_path / "rules.yml").write_text(cases.replace("RULES", str(RULES)))
    tested = subprocess.run([tool("promtool"), "test", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_alerts_and_dashboard_ask_for_metrics_that_there_are(shared):
    there = {key.partition("{")[0] for key in metrics(shared)} | {"hbm_device_unaccounted_bytes"}  # no driver tells it of host memory
    dashboard = json.loads((ROOT / "packaging" / "grafana" / "hbm.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += re.findall(r"expr: (.*)", RULES.read_text())
    wanted = set(re.findall(r"\bhbm_\w+", " ".join(asked)))
    assert len(wanted) > 15 and wanted <= there


def test_prometheus_scrapes_a_daemon_and_knows_the_alerts(shared, prometheus):
    if not prometheus:
        tool("prometheus")
    [row] = shared.wait_for(lambda: prometheus("query", query="hbm_up{job='hbm'}")["result"], 60)
    assert row["value"][1] == "1"
    [row] = prometheus("query", query="hbm_tier_capacity_bytes{tier='device'}")["result"]
    assert row["metric"]["device"] and int(row["value"][1]) > 0
    assert len(prometheus("rules")["groups"][0]["rules"]) == len(re.findall("alert:", RULES.read_text()))


def test_a_scrape_of_a_daemon_that_hangs_ends(unanswered):
    assert unanswered.recv(100) == b""
