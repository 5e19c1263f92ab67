"""The examples of the Python package do what they say, in host memory."""
import re
import subprocess
import sys

import numpy
import pytest

from helpers import module_daemon, safetensors, shared, sweep
from test_python import PACKAGE, environment


@pytest.fixture
def example(shared):
    def run(name, *arguments):
        ended = subprocess.run([sys.executable, str(PACKAGE / "examples" / name), *map(str, arguments)], env=environment(shared), text=True,
                               timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    yield run
    sweep(shared)


def test_two_processes_serve_one_model(shared, example, tmp_path):
    weight = numpy.arange(12, dtype="f4").reshape(3, 4)
    path = safetensors(tmp_path / "m.safetensors", {"w": ("F32", (3, 4), weight.tobytes())}, {})
    said = example("share.py", path).splitlines()
    assert len(said) == 2 and all("1 tensors after" in line and line.endswith("answer 14") for line in said), said
    assert len({line.split(":")[0] for line in said}) == 2
    assert [row["name"] for row in shared.rpc("hbm.models")] == ["shared"]


def test_an_example_without_its_file_tells_how_it_is_called(shared):
    ended = subprocess.run([sys.executable, str(PACKAGE / "examples" / "share.py")], env=environment(shared), text=True, timeout=120,
                           capture_output=True, check=False)
    assert ended.returncode == 1 and "python3 share.py MODEL.safetensors" in ended.stderr and "Traceback" not in ended.stderr


def test_a_restarted_engine_finds_its_weights_where_they_were(shared, example):
    said = example("restart.py", 16).splitlines()
    answers = [re.search(r"16 layers mapped in .* ms, answer (\S+)", line).group(1) for line in said]
    assert len(answers) == 2 and answers[0] == answers[1]


def test_a_decode_loop_computes_the_same_with_a_window_of_layers(shared, example):
    said = example("decode.py", 6, 3)
    random = numpy.random.default_rng(1)
    weights = [random.standard_normal((512, 512), "f4") / 512**0.5 for _ in range(6)]
    x = numpy.ones((1, 512), "f4")
    for _ in range(3):
        for weight in weights:
            x = x @ weight
        x = x / abs(x).max()
    assert "3 tokens through 6 layers" in said and abs(float(said.split(":")[1]) - abs(x).sum()) < 0.01 * abs(x).sum()
    assert shared.rpc("hbm.models")[0]["order"] == [f"layers.{i}" for i in range(6)]
    assert [row for row in shared.rpc("hbm.ops") if row["verb"] == "offload"], "the window sent nothing away"
