"""hbmctl top: on terminals of several sizes, without one, and while the daemon comes and goes."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from conftest import BUILD, ROOT, Daemon
from helpers import ctl_done, ctl_json, ctl_refused, load_layers, module_daemon, put, shared  # noqa: F401
from screen import BOLD, ENTER, Screen

MODELS = 22


@pytest.fixture
def screen():
    with contextlib.ExitStack() as stack:
        def make(daemon, *arguments, **how):
            made = Screen(daemon, "top", "--interval", "0.2", *arguments, **how)
            stack.callback(made.close)
            return made
        yield make


@pytest.fixture(scope="module")
def crowded():
    """Models, the later the larger."""
    daemon = Daemon().start()
    for i in range(MODELS):
        load_layers(daemon, f"model-{MODELS - 1 - i:02}", 2, 256 * (i + 1))
    yield daemon
    daemon.close()


def models(lines):
    return [line.split()[0] for line in lines if line.startswith("model-")]


def test_without_a_terminal_it_is_one_screen_with_everything(crowded):
    text = ctl_done(crowded, "top")
    assert "\x1b" not in text and len(ctl_done(crowded, "top", "--once").splitlines()) == len(text.splitlines())
    lines = text.splitlines()
    assert lines[0].startswith("hbmd ") and f"{MODELS} models, {2 * MODELS} buffers" in lines[0]
    assert re.match(r"N +DEVICE +STATE", lines[1]) and "[" in lines[2]
    assert models(lines) == [f"model-{i:02}" for i in range(MODELS)], "the largest first"
    assert models(ctl_done(crowded, "top", "--sort", "name").splitlines()) == [f"model-{i:02}" for i in range(MODELS)]
    assert models(ctl_done(crowded, "top", "--sort", "age").splitlines()) == [f"model-{MODELS - 1 - i:02}" for i in range(MODELS)]
    answers = ctl_json(crowded, "top")
    assert set(answers) == {"status", "models", "sessions", "ops"} and len(answers["models"]) == MODELS
    ctl_refused(crowded.ctl("top", "--sort", "colour"), 2, "bytes|name|age")


@pytest.mark.parametrize("columns, lines", [(80, 24), (20, 10), (200, 60)])
def test_it_fits_the_terminal_and_says_what_has_no_room(crowded, screen, columns, lines):
    shown = screen(crowded, columns=columns, lines=lines)
    frame = shown.frame()
    assert len(frame) <= lines and all(len(line) <= columns for line in frame), frame
    assert len(models(frame)) == (MODELS if lines == 60 else len(models(frame))) and (lines == 2 or models(frame))
    if columns == 80:
        assert re.search(r"; \d+ rows have no room", frame[0]) and re.match(r"MODEL +STATE +GROUPS +DEVICE", frame[3])
    shown.end()


def test_another_size_is_another_screen_at_once(crowded, screen):
    shown = screen(crowded)
    shown.frame(lambda frame: len(frame) > 10)
    shown.resize(30, 8)
    shown.frame(lambda frame: len(frame) <= 8 and all(len(line) <= 30 for line in frame))
    shown.resize(100, 50)
    shown.frame(lambda frame: len(models(frame)) == MODELS)
    shown.end(lambda each: each.process.send_signal(signal.SIGTERM))


def test_keys_sort_it(crowded, screen):
    shown = screen(crowded, "--sort", "age")
    assert models(shown.frame())[0] == f"model-{MODELS - 1}"
    shown.press("n")
    assert models(shown.frame(lambda frame: "by name" in frame[-1]))[0] == "model-00"
    shown.press("a")
    assert models(shown.frame(lambda frame: "by age" in frame[-1]))[0] == f"model-{MODELS - 1}"
    shown.end()


def test_colour_is_for_those_who_want_it(shared, screen):
    for options, environment, bold in (((), {}, True), (("--no-color",), {}, False), ((), {"NO_COLOR": "1"}, False)):
        shown = screen(shared, *options, **environment)
        shown.frame()
        assert (BOLD in shown.text) == bold
        shown.end()
    shown = screen(shared, TERM="dumb")
    shown.process.wait(30)
    shown.read()
    assert ENTER not in shown.text and "DEVICE" in shown.text


def test_it_outlives_the_daemon_and_finds_the_next(daemon, screen):
    shown = screen(daemon)
    shown.frame(lambda frame: frame[0].startswith("hbmd "))
    daemon.stop()
    shown.frame(lambda frame: frame[0].startswith("no daemon answers"))
    daemon.start()
    shown.frame(lambda frame: frame[0].startswith("hbmd "))
    shown.end()
    daemon.stop()
    ctl_refused(daemon.ctl("top"), 3, "hbmd")


def test_a_move_is_there_with_how_far_it_is(make_daemon):
    daemon = make_daemon(config="disk_write_limit = 1\n").start()
    put(daemon, "w", bytes(48 << 20))
    op = json.loads(ctl_done(daemon, "--json", "offload", "w", "--to", "disk", "--async"))["op"]
    moving = re.compile(r"offload +\[###-------\] +33 % +48\.0 MiB")
    text = daemon.wait_for(lambda: text if moving.search(text := ctl_done(daemon, "top")) else None, 30)
    assert re.search(r"^0 +disk_write ", text, re.M), text
    ctl_done(daemon, "cancel", op)


def test_the_pictures_in_readme_can_be_drawn_again(tmp_path):
    """By `make pictures`, of a daemon that is moving a model."""
    ended = subprocess.run([sys.executable, ROOT / "tests" / "demo" / "pictures.py", tmp_path], env={**os.environ, "HBM_BUILD": str(BUILD)},
                           text=True, capture_output=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    top, drawn = (ElementTree.parse(tmp_path / name).getroot() for name in ("top.svg", "map.svg"))
    texts = [element.text for element in top]
    assert {"aurora-small", "engine-a", "sleep", "LEFT"} <= set(texts)
    assert any(element.text.startswith("aurora-small layers.0: 1 buffer, 1.0 MiB") for element in drawn.iter() if element.tag.endswith("title"))
    for name in ("top.svg", "map.svg"):
        assert f"(packaging/pictures/{name})" in (ROOT / "README.md").read_text() and (ROOT / "packaging" / "pictures" / name).exists()
