"""advise-codec: every codec tried, nothing kept, and what is advised (CASES 21)."""
import random
import struct

import pytest

from conftest import BUILD, RpcError
from helpers import ctl_done, ctl_json, ctl_refused, floats, get, hash_of, module_daemon, put, row_of, safetensors, shared, used

ROWS, COLUMNS = 64, 256


def layers(daemon, planted=1, loud=100.0):
    """Three layers of normal numbers; in one every row has a loud one, or every group of 128 a very loud one."""
    numbers, tensors = random.Random(1), {}
    for layer in range(3):
        weight = [numbers.gauss(0, 1) for _ in range(ROWS * COLUMNS)]
        if layer == planted:
            for row in range(ROWS):
                weight[row * COLUMNS + row * 5 % COLUMNS] = loud
                if loud > 100:
                    weight[row * COLUMNS + (row * 5 + 128) % COLUMNS] = loud
        tensors[f"layers.{layer}.weight"] = ("F32", (ROWS, COLUMNS), floats(weight))
        tensors[f"layers.{layer}.bias"] = ("F32", (32,), floats([numbers.gauss(0, 1) for _ in range(32)]))
    ctl_done(daemon, "load", safetensors(daemon.home / "layers.safetensors", tensors), "--as", "m")


def weights(rows):
    return [next(row for row in rows if row["name"] == f"m/layers.{layer}.weight") for layer in range(3)]


def tried(row, encoding):
    return next(each for each in row["tries"] if each["encoding"] == encoding)


def test_a_layer_with_outliers_is_told_from_its_neighbours(shared):
    layers(shared)
    before, held, hashes = shared.rpc("hbm.ls"), used(shared), hash_of(shared, "*")
    rows = shared.rpc("hbm.advise_codec", {"sel": "model:m"})
    first, planted, last = weights(rows)
    for row in (first, last):
        assert row["advice"] == "int8 per channel 0" and row["first"] == "fp16"
        assert 38 < tried(row, "int8 per tensor")["sqnr_db"] < 44 and tried(row, "int8 per channel 0")["holds"]
        assert not tried(row, "int4 per group of 128")["holds"]
    for granularity in ("per tensor", "per channel 0"):
        assert tried(planted, f"int8 {granularity}")["sqnr_db"] < 30 and not tried(planted, f"int8 {granularity}")["holds"]
    assert not (planted["advice"] or "").startswith(("int8 per tensor", "int8 per channel")) and planted["why"]
    assert all(row["left"] and not row["tries"] and row["advice"] is None for row in rows if row["name"].endswith("bias"))
    assert (shared.rpc("hbm.ls"), used(shared), hash_of(shared, "*")) == (before, held, hashes), "something was left of it"
    ctl_refused(shared.ctl("compress", "m/*weight", "--codec", "int8", "--min-sqnr", "30"), 1, "m/layers.1.weight", "worse")
    assert shared.rpc("hbm.ls") == before
    text = ctl_done(shared, "advise-codec", "model:m")
    assert "m/layers.1" in text and "int8 per channel 0" in text and "3 buffers left alone" in text


def test_outliers_so_loud_that_the_signal_is_theirs_are_caught_by_what_they_make_0(shared):
    layers(shared, loud=1e7)
    rows = weights(shared.rpc("hbm.advise_codec", {"sel": "model:m"}))
    assert [row["advice"] for row in rows] == ["int8 per channel 0", "fp16-scaled per tensor", "int8 per channel 0"]
    assert tried(rows[1], "fp16")["clipped_fraction"] > 0
    quiet = tried(rows[1], "fp8-e4m3 per tensor")
    assert quiet["sqnr_db"] > 60 and quiet["zeroed_fraction"] > 0.9 and not quiet["holds"]


def test_what_is_advised_is_applied(shared):
    layers(shared)
    rows = ctl_json(shared, "advise-codec", "model:m", "--codec", "int8", "--apply")
    assert [row["encoding"] for row in weights(rows)] == ["int8 per channel 0", "int8 per group of 128", "int8 per channel 0"]
    for row in weights(rows):
        assert row_of(shared, row["name"])["encoding"] == row["encoding"] == row["advice"]
    assert row_of(shared, "m/layers.0.bias")["encoding"] == "raw"


def test_the_users_own_check_sees_each_encoding_and_has_a_say(shared):
    layers(shared)
    before, held = shared.rpc("hbm.ls"), used(shared)
    check = f'cp $HBM_EVAL_COPIES {shared.home}/"$HBM_EVAL_ENCODING"; echo; echo $(wc -l < $HBM_EVAL_COPIES) copies; echo; '
    told = ctl_json(shared, "advise-codec", "model:m", "--codec", "int8", "--eval", check)
    assert [(row["encoding"], row["buffers"], row["exit"], row["result"]) for row in told["evaluations"]] == [
        ("raw", 0, 0, "0 copies"), ("int8 per tensor", 3, 0, "3 copies"), ("int8 per channel 0", 3, 0, "3 copies"),
        ("int8 per group of 128", 3, 0, "3 copies"), ("as advised", 3, 0, "3 copies")]
    copies = dict(line.split("\t") for line in (shared.home / "as advised").read_text().splitlines())
    assert set(copies) == {row["name"] for row in weights(told["rows"])}
    assert shared.rpc("hbm.ls") == before and used(shared) == held, "copies are left"
    result = shared.ctl("advise-codec", "model:m", "--codec", "fp16", "--apply", "--eval", 'test "$HBM_EVAL_ENCODING" = raw')
    ctl_refused(result, 1, "nothing was applied")
    assert shared.rpc("hbm.ls") == before
    ctl_done(shared, "advise-codec", "model:m", "--codec", "fp16", "--apply", "--eval", "true")
    assert row_of(shared, "m/layers.1.weight")["encoding"] == "fp16"


def test_a_copy_that_the_check_attaches_has_the_loss_in_it_and_the_published_dtype(shared):
    layers(shared)
    path = shared.home / "copy"
    check = f'test ! -s $HBM_EVAL_COPIES || "{BUILD}/hbmctl" get "$(cut -f2 $HBM_EVAL_COPIES)" {path}'
    told = ctl_json(shared, "advise-codec", "m/layers.0.weight", "--codec", "int4", "--eval", check)
    assert [row["exit"] for row in told["evaluations"]] == [0, 0, 0]
    raw, copy = (struct.unpack(f"<{ROWS * COLUMNS}f", data) for data in (get(shared, "m/layers.0.weight"), path.read_bytes()))
    worst = max(abs(x - y) for x, y in zip(raw, copy))
    assert 0.1 < worst == pytest.approx(tried(told["rows"][0], "int4 per group of 128")["max_abs_error"], rel=1e-6)


@pytest.mark.parametrize("params, word", [({"codec": "gzip"}, "codec"), ({"min_sqnr": -1}, "negative"), ({"sel": "none"}, "none")], ids=str)
def test_a_question_that_makes_no_sense_is_refused(shared, params, word):
    layers(shared)
    with pytest.raises(RpcError) as refusal:
        shared.rpc("hbm.advise_codec", {"sel": "model:m"} | params)
    assert word in str(refusal.value)


def test_what_codecs_do_not_take_is_refused_alone(shared):
    put(shared, "bytes", b"x" * 4096)
    ctl_refused(shared.ctl("advise-codec", "bytes"), 1, "bytes", "F32")
