"""`make demo`, the first command of README.md, to its end: with a small model that is made here."""
import os
import re
import subprocess

from conftest import BUILD, ROOT
from helpers import layers, safetensors


def test_the_demo_does_the_whole_job(tmp_path):
    model = safetensors(tmp_path / "small.safetensors", layers(6))
    done = subprocess.run([ROOT / "tests/demo/demo.sh", model], env=dict(os.environ, BUILD=str(BUILD)), capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "The demo did all of it" in done.stdout
    assert re.search(r"18 locks: \d+ found their layer away and waited, \d+ ms in all; \d+ found it brought ahead", done.stdout)
    assert re.search(r"MiB came, and as many left, in .* GB/s each way, beside .* of the loop's own work", done.stdout)
