"""Other implementations of what we do, from pip: where HBM_PEERS=1 asks for them."""
import os
import subprocess
import sys

import pytest

from conftest import BUILD
from helpers import host_only

PIP = BUILD / "pip"


def with_peers(test):
    return host_only(test) if os.environ.get("HBM_PEERS") == "1" else None


def fetch(package, version="", *options):
    """Into PIP, once."""
    if not (PIP / package).exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore",
                   "--only-binary=:all:", "--target", str(PIP), *options, package + version]
        ended = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False)
        if ended.returncode:
            pytest.skip(f"pip could not fetch {package}: {ended.stderr.strip()[-200:]}")
