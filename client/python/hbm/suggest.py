"""What somebody may have meant whose name is not there."""
from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

from . import rpc


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of a sentence, or nothing."""
    close = difflib.get_close_matches(wrong, list(known), n=3)
    return "; did you mean " + " or ".join(f'"{name}"' for name in close) + "?" if close else ""


def published(runtime_dir: str | os.PathLike | None) -> list[str]:
    """The models that this user may see; none where the daemon does not say: this only helps."""
    try:
        return [row["name"] for row in rpc.call(runtime_dir, "hbm.models", {}, timeout=2)]
    except Exception:  # pylint: disable=broad-except
        return []
