"""hbmctl map: what lies where, as text, as JSON and as a picture."""
import os
import re
import xml.etree.ElementTree as ElementTree

import pytest

from conftest import Daemon
from helpers import MIB, client_program, ctl_done, ctl_json, ctl_refused, load_layers, module_daemon, program, put, safetensors, shared, sweep  # noqa: F401

SVG = "{http://www.w3.org/2000/svg}"


def bars(text):
    return {match[1]: match[2] for match in re.finditer(r"^(device|host|disk) +([A-Za-z=+#.]+)(?: |$)", text, re.M)}


def load(daemon, model, layers):
    """Of 1 MiB each."""
    tensors = {f"layers.{i}.weight": ("F32", (MIB // 4,), bytes(MIB)) for i in range(layers)}
    ctl_done(daemon, "load", safetensors(daemon.home / "m.safetensors", tensors), "--as", model)


@pytest.fixture(scope="module")
def small_daemon():
    daemon = Daemon(config="device_bytes = 6MiB\nhost_bytes = 6MiB\n").start()
    yield daemon
    daemon.close()


@pytest.fixture
def small(small_daemon):
    yield small_daemon
    sweep(small_daemon)


def test_each_model_has_its_letter_where_it_lies_as_long_as_its_share(small, program):  # noqa: F811
    daemon = small
    load(daemon, "small", 2)
    load(daemon, "large", 3)
    put(daemon, "loose", bytes(MIB // 2))
    text = ctl_done(daemon, "map")
    assert bars(text)["device"] == "a" * 30 + "b" * 20 + "=" * 5 + "." * 5
    assert bars(text)["host"] == "." * 60
    ctl_done(daemon, "sleep", "small")
    user = program(daemon)
    user.ask("attach", "loose", "ro", 0)
    text = ctl_done(daemon, "map")
    user.end()
    assert bars(text) | {"disk": ""} == {"device": "a" * 30 + "=" * 5 + "." * 25, "host": "b" * 20 + "." * 40, "disk": ""}
    assert "a  large, 3.0 MiB\n" in text and "=  buffers of no model, 512.0 KiB, leased\n" in text


def test_a_model_that_is_too_little_for_a_column_is_seen_all_the_same(shared):
    load(shared, "little", 1)
    assert bars(ctl_done(shared, "map"))["device"] == "a" + "." * 59


def test_the_pieces_are_groups_with_their_bytes(shared):
    load_layers(shared, "m", 2, 4096)
    put(shared, "w", bytes(5000))
    put(shared, "v", bytes(3000))
    pieces = {(row["tier"], row["model"], row["group"]): row for row in ctl_json(shared, "map")}
    assert set(pieces) == {("device", "m", "layers.0"), ("device", "m", "layers.1"), ("device", "", "")}
    assert pieces["device", "m", "layers.0"]["bytes"] == 16384
    assert (pieces["device", "", ""]["bytes"], pieces["device", "", ""]["buffers"]) == (8000, 2)
    assert not any(row["leased"] for row in pieces.values())


def test_the_picture_is_xml_whatever_the_names_and_is_there_whole_or_not(small, tmp_path):
    load(small, "<m&\">", 3)
    path = tmp_path / "map.svg"
    assert ctl_done(small, "map", "--svg", path) == ""
    picture = ElementTree.parse(path).getroot()
    titles = [title.text for title in picture.iter(f"{SVG}title")]
    assert [title for title in titles if title.startswith("<")] == [f'<m&"> layers.{i}: 1 buffer, 1.0 MiB' for i in range(3)]
    assert any(text.text.startswith('<m&">, 3.0 MiB') for text in picture.iter(f"{SVG}text"))
    ctl_refused(small.ctl("map", "--svg", tmp_path / "none" / "map.svg"), 1, "map.svg")
    assert os.listdir(tmp_path) == ["map.svg"]


def test_an_empty_daemon_has_an_empty_map(shared, tmp_path):
    assert set("".join(bars(ctl_done(shared, "map")).values())) == {"."}
    ctl_done(shared, "map", "--svg", tmp_path / "map.svg")
    assert ElementTree.parse(tmp_path / "map.svg").getroot().tag == f"{SVG}svg"
