"""Memory parked by bf16-lossless: fewer bytes, and all of them back (FAULTS 25; CASES 21)."""
import random
import struct

import pytest

from helpers import MIB, ctl_done, ctl_refused, floats, hash_of, module_daemon, row_of, safetensors, shared, tier_of, used
from test_park import PACK, mixed

WIDE = 9 * MIB  # elements: more than two windows of what is packed, cut inside


def weights(n, dtype):
    """Like a layer's: Gaussian, the same few hundred kilobytes again and again, each time from elsewhere."""
    pick = random.Random(3)
    some = bytes(PACK[dtype]([pick.gauss(0, 0.02) for _ in range(150001)]))
    return b"".join(some[2 * (i * 7919 % 150001):] for i in range(2 * n // len(some) * 3 + 3))[:2 * n]


def noise(n):
    return random.Random(4).randbytes(2 * n)


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_every_16_bit_tensor_comes_back_bit_for_bit(shared, tier):
    tensors = {"wide": ("BF16", (WIDE // 1024, 1024), weights(WIDE, "BF16")), "half": ("F16", (MIB,), weights(MIB, "F16")),
               "noise": ("BF16", (300001,), noise(300001)), "patterns": ("F16", (65536,), struct.pack("<65536H", *range(65536))),
               "zeros": ("BF16", (70000,), bytes(140000)), "wider": ("F32", (4096,), floats([i / 7 for i in range(4096)]))}
    odd = {f"{name}.{dtype}": tensor for dtype in ("F16", "BF16") for name, tensor in mixed(dtype).items()}
    ctl_done(shared, "load", safetensors(shared.home / "x.safetensors", tensors | odd), "--as", "m")
    before = hash_of(shared, "model:m")
    ctl_done(shared, "compress", "m/wide", "--codec", "bf16-lossless", "--mode", "park")
    ctl_done(shared, "sleep", "m", "--to", tier, "--codec", "bf16-lossless")
    rows = {row["name"][2:]: row for row in shared.rpc("hbm.ls", {"glob": "m/*"})}
    assert rows["wide"]["parked"] == "bf16-lossless" and rows["wider"]["parked"] is None and rows["wider"]["tier"] == tier
    for name, most in {"wide": 0.70, "half": 0.90, "noise": 1.002, "patterns": 1.01, "zeros": 0.58}.items():
        receipt = rows[name]["receipt"]
        assert receipt["bytes_after"] == rows[name]["stored_size"] <= most * receipt["bytes_before"] and receipt["bytes_before"] == rows[name]["size"]
        assert receipt["sqnr_db"] is None and receipt["max_abs_error"] == 0
    groups = {row["group"] for row in rows.values()}  # each an arena, of whole pages: on a GPU of 2 MiB
    assert used(shared, tier) <= sum(row["stored_size"] for row in rows.values()) * 1.01 + 2 * MIB * len(groups)
    assert hash_of(shared, "model:m") == before, "hash says what an attach would see"
    ctl_done(shared, "wake", "m")
    assert hash_of(shared, "model:m") == before and used(shared, tier) == 0


def test_a_save_of_what_was_parked_without_loss_is_said_to_be_what_was_loaded(shared):
    path = safetensors(shared.home / "x.safetensors", {name: ("BF16", (70000,), weights(70000, "BF16")) for name in "ab"})
    ctl_done(shared, "load", path, "--as", "m")

    def said_by_save():
        ctl_done(shared, "sleep", "m", "--codec", "bf16-lossless")
        ctl_done(shared, "wake", "m")
        assert [row["receipt"]["max_abs_error"] for row in shared.rpc("hbm.ls", {"glob": "m/*"})] == [0, 0]
        result = shared.ctl("save", "m", shared.home / "out.safetensors")
        assert result.returncode == 0
        return result.stderr

    assert said_by_save() == "" and (shared.home / "out.safetensors").read_bytes() == path.read_bytes()
    ctl_done(shared, "compress", "m/a", "--codec", "int8")
    ctl_done(shared, "decompress", "m/a")
    assert "1 of 2 tensors went through a lossy codec" in said_by_save(), "what int8 took is not back"
    assert [row["receipt"]["lossless"] for row in shared.rpc("hbm.ls", {"glob": "m/*"})] == [False, True]


def test_lossless_is_refused_where_it_would_not_be_parked_or_not_be_lossless(shared):
    ctl_done(shared, "load", safetensors(shared.home / "x.safetensors", {"h": ("BF16", (5000,), weights(5000, "BF16")),
                                                                         "f": ("F32", (5000,), floats([1.5] * 5000))}), "--as", "m")
    for mode in ("replace", "copy"):
        ctl_refused(shared.ctl("compress", "m/h", "--codec", "bf16-lossless", "--mode", mode), 1, "mode park")
    ctl_refused(shared.ctl("compress", "m/f", "--codec", "bf16-lossless", "--mode", "park"), 1, "BF16 and F16")
    assert tier_of(shared, "m/h") == "device" and row_of(shared, "m/h")["parks_as"] is None
