"""The Python package as others get it: its types hold, and its wheel installs and runs."""
import os
import shutil
import subprocess
import sys

import pytest

from helpers import module_daemon, put, shared
from test_python import PACKAGE, environment

USER = """
import asyncio
import hbm
import hbm.aio
import hbm.gguf
import hbm.torch
import hbm.transformers
import hbm.vllm

async def main() -> None:
    async with hbm.aio.connect() as session:
        buffer = await session.attach("w", timeout=3)
        receipt = await session.offload("w", "host")
        reveal_type(buffer)
        reveal_type(receipt)
        await session.attach(3.5)

reveal_type(hbm.connect().devices())
"""


def run(*command, **how):
    ended = subprocess.run(command, text=True, timeout=900, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **how)
    return ended.returncode, ended.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Where the wheel is installed, made without a network."""
    if run(sys.executable, "-c", "import setuptools, wheel, pip")[0]:
        pytest.skip("pip, setuptools or wheel are not installed: no wheel is made here")
    home = tmp_path_factory.mktemp("wheel")
    shutil.copytree(PACKAGE, home / "source")  # what is built leaves folders beside it
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    status, said = run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", home, home / "source")
    assert status == 0, said
    wheel, = home.glob("hbm-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    status, said = run(*pip, "install", "--no-deps", "--no-index", "--target", home / "site", wheel)
    assert status == 0, said
    return home / "site"


def test_the_wheel_has_every_module_and_runs_by_itself(shared, installed):
    modules = {path.name for path in (PACKAGE / "hbm").iterdir() if path.is_file()}
    assert {path.name for path in (installed / "hbm").iterdir() if path.is_file()} == modules and "py.typed" in modules
    put(shared, "w", b"data")
    code = "import hbm; print(hbm.__file__, bytes(hbm.connect().attach('w').numpy()).decode())"
    status, said = run(sys.executable, "-c", code, env={**environment(shared), "PYTHONPATH": str(installed)}, cwd="/")
    assert (status, said.split()) == (0, [str(installed / "hbm" / "__init__.py"), "data"])


@pytest.mark.skipif(not shutil.which("mypy"), reason="mypy is not installed: the package's types are not checked here")
def test_the_packages_types_hold_and_who_uses_it_has_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(USER)
    _, said = run("mypy", "--cache-dir", tmp_path, "--config-file", PACKAGE / "pyproject.toml", program, cwd=tmp_path,
                  env={**os.environ, "MYPYPATH": str(PACKAGE)})
    revealed = [line.split("Revealed type is ")[1] for line in said.splitlines() if "Revealed" in line]
    assert len(revealed) == 3 and "hbm.buffer.Buffer" in revealed[0] and "hbm.op.Receipt" in revealed[1] and "hbm.session.Device" in revealed[2], said
    errors = [line for line in said.splitlines() if "error:" in line]
    assert len(errors) == 1 and "program.py" in errors[0] and '"float"' in errors[0], said
