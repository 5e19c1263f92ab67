"""Draws what README shows: the screen of `hbmctl top` while a model goes to sleep, and `hbmctl map --svg`, of a daemon of its own
that serves some host memory. usage: pictures.py FOLDER     writes top.svg and map.svg there (HBM_BUILD: where the programs are)"""
import contextlib
import html
import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "flow"))

from conftest import BUILD, Daemon  # noqa: E402  pylint: disable=wrong-import-position
from helpers import MIB, ctl_done, safetensors, used  # noqa: E402  pylint: disable=wrong-import-position
from screen import BOLD, PLAIN, Screen  # noqa: E402  pylint: disable=wrong-import-position

CONFIG = "device_bytes = 128MiB\nhost_bytes = 256MiB\ndisk_bytes = 512MiB\nhost_link_limit = {}\n"
MODELS = {"aurora-large": (24, 2), "aurora-embed": (6, 2), "aurora-vision": (10, 2), "aurora-small": (12, 1), "aurora-draft": (4, 1)}
ON_DEVICE = sum(1 + layers * mib for layers, mib in list(MODELS.values())[:3])  # MiB, when all is where it is to be
COLUMNS, LINES, WIDE, HIGH = 80, 24, 8.4, 18


def load(daemon, name, layers, mib):
    """Of so many layers, each of so many MiB, and an embedding of one."""
    tensors = {f"layers.{i}.weight": ("BF16", (mib * MIB // 2048, 1024), bytes([i]) * (mib * MIB)) for i in range(layers)}
    ctl_done(daemon, "load", safetensors(daemon.home / "model.safetensors", {"embed": ("BF16", (512, 1024), bytes(MIB)), **tensors}), "--as", name)


@contextlib.contextmanager
def engine(daemon, name, model):
    """A client of that name, which has the model."""
    environment = {"HBM_LIBRARY": str(BUILD / "libhbm.so"), **os.environ, "HBM_RUNTIME_DIR": str(daemon.runtime_dir),
                   "PYTHONPATH": str(ROOT / "client" / "python")}
    with subprocess.Popen([name, "-c", f"import hbm, signal; model = hbm.connect().model({model!r}); print(flush=True); signal.pause()"],
                          executable=sys.executable, env=environment, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.read(1)  # it is attached, or has ended
            yield
        finally:
            process.kill()


def terminal(lines):
    """Whatever font it is drawn in, each word begins in its column."""
    width, height = COLUMNS * WIDE + 24, len(lines) * HIGH + 20
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" '
             'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" fill="#d8dee9">',
             '<rect width="100%" height="100%" rx="6" fill="#1d2129"/>']
    for number, line in enumerate(lines):
        column, bold = 0, False
        for piece in line.replace(BOLD, f"\0{BOLD}\0").replace(PLAIN, f"\0{PLAIN}\0").split("\0"):
            if piece in (BOLD, PLAIN):
                bold = piece == BOLD
                continue
            for words in piece.split("  "):
                begin = column + len(words) - len(words.lstrip())
                column += len(words) + 2
                words = words.strip()
                if words:
                    weight = ' font-weight="bold"' if bold else ""
                    drawn.append(f'<text x="{12 + begin * WIDE:.1f}" y="{24 + number * HIGH}" textLength="{len(words) * WIDE:.1f}"{weight}>'
                                 f"{html.escape(words)}</text>")
            column -= 2
    return "\n".join([*drawn, "</svg>", ""])


def limit(daemon, rate):
    (daemon.home / "hbmd.conf").write_text(CONFIG.format(rate))
    daemon.process.send_signal(signal.SIGHUP)


def draw_top(daemon, path):
    limit(daemon, "2MiB")
    with contextlib.closing(Screen(daemon, "top", "--interval", "0.2", columns=COLUMNS, lines=LINES)) as screen:
        ctl_done(daemon, "sleep", "aurora-small", "--async")
        lines = screen.frame(lambda lines: any(re.search(r"sleep .*[4-9]\d %", line) for line in lines), clean=str)
        path.write_text(terminal(lines))
    limit(daemon, 0)


def main(folder):
    daemon = Daemon(config=CONFIG.format(0)).start()
    with contextlib.closing(daemon), contextlib.ExitStack() as engines:
        for name, (layers, mib) in MODELS.items():
            load(daemon, name, layers, mib)
        for name, model in (("engine-a", "aurora-large"), ("engine-b", "aurora-large"), ("embedder", "aurora-embed")):
            engines.enter_context(engine(daemon, name, model))
        ctl_done(daemon, "sleep", "aurora-draft", "--to", "disk")
        draw_top(daemon, folder / "top.svg")
        daemon.wait_for(lambda: used(daemon) == ON_DEVICE * MIB, 60)
        ctl_done(daemon, "map", "--svg", folder / "map.svg")
    for name in ("top.svg", "map.svg"):
        print(f"drawn: {folder / name}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
