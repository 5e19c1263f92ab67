"""Packets that lie (FAULTS 7; CASES 13)."""
import os
import pickle
import random

import pytest

from helpers import Client, child, gone_with_words, module_daemon, put, refused, serves, shared, violation
from tables import sealed, table
from wire import HEADER, KEEP, LIMITS, MESSAGES, ONE_WAY, STRUCTS

REQUESTS = [name for name, row in MESSAGES.items() if row["opcode"] < 64]
HELLO = {"version": LIMITS["version"]}


def raw(data):
    return lambda link: link.send_raw(data)


GOOD = HEADER.pack({"opcode": MESSAGES["device"]["opcode"], "serial": 9}) + MESSAGES["device"]["request"].pack({})


@pytest.mark.parametrize("data", [b"x", GOOD[:15], GOOD[:16], GOOD[:-1], GOOD + b"\0", GOOD + b"\0" * 7000, b"\0" * 16, b"\xff" * 64,
                                  pickle.dumps({"cmd": os.system}), b"GET / HTTP/1.0\r\n\r\n"],
                         ids=["a byte", "half a header", "no body", "a byte short", "a byte long", "long", "zeros", "ones",
                              "a pickle", "http"])
@pytest.mark.parametrize("hello", [True, False], ids=["greeted", "fresh"])
def test_a_packet_of_the_wrong_form_ends_its_link_alone(shared, child, data, hello):
    """FAULTS 7, CASES 13: no payload is ever executed."""
    violation(shared, child, raw(data), hello=hello)


def test_an_oversized_packet_ends_its_link_alone(shared, child):
    """FAULTS 7."""
    violation(shared, child, raw(GOOD + b"\0" * LIMITS["packet_bytes"]), words=["larger"])


def test_a_zero_length_packet_ends_its_link_alone(shared, child):
    """FAULTS 7: it reads as the end of the file."""
    def send(say):
        with Client(shared.socket) as link:
            link.hello()
            link.send_raw(b"")
            link.gone()
            say()

    child(send).heard()
    assert serves(shared)


@pytest.mark.parametrize("version", [0, LIMITS["version"] + 1, 2**32 - 1])
def test_another_version_is_refused_by_name(shared, version):
    """FAULTS 7."""
    with Client(shared.socket) as link:
        with refused("BAD_VERSION", "version"):
            link.call("hello", version=version, client="old")
        gone_with_words(link, "version")
    assert serves(shared)


@pytest.mark.parametrize("opcode", [0, 20, 63, 64, 65, 66, 67, 1 << 16, 2**31, 2**32 - 1])
def test_an_unknown_opcode_or_an_event_ends_its_link_alone(shared, child, opcode):
    """FAULTS 7."""
    violation(shared, child, lambda link: link.send("device", opcode=opcode))


@pytest.mark.parametrize("how", [{"status": -1}, {"status": 1}, {"more": 1}, {"serial": 0}, {"n_fds": 3}, {"n_fds": 65535}], ids=str)
def test_a_header_that_is_no_requests_ends_its_link_alone(shared, child, how):
    """FAULTS 7."""
    violation(shared, child, lambda link: link.send("device", **how))


UNUSED = [name for name in REQUESTS if any(field[0] == "unused" for field in MESSAGES[name]["request"].fields)]


@pytest.mark.parametrize("name", UNUSED)
def test_a_reserved_field_that_is_set_ends_its_link_alone(shared, child, name):
    """FAULTS 7."""
    fields = {"version": LIMITS["version"]} if name == "hello" else {}
    serial = 0 if name in ONE_WAY else None
    violation(shared, child, lambda link: link.send(name, unused=1, serial=serial, **fields), words=["unused"], hello=name != "hello")


def test_a_request_before_hello_and_a_second_hello_end_the_link(shared, child):
    violation(shared, child, lambda link: link.send("device"), hello=False, words=["HELLO"])
    violation(shared, child, lambda link: link.send("hello", **HELLO), words=["second HELLO"])


EXTREMES = {"Q": [0, 1, 2**31, 2**32 - 1, 2**32, 2**52, 2**63 - 1, 2**63, 2**64 - 1], "I": [0, 1, 2, 8, 127, 2**16, 2**31, 2**32 - 1],
            "B": [0, 1, 2, 3, 8, 127, 255]}
TEXTS = ["", "a", "/", "..", "a/../b", "*", "id:0xffffffffffffffff", "id:", "model:", "group:", "model:" + "x" * 200, "~0/x", "~99/",
         "[", "a" * 255, "\x01", "e\u0301", "m"]


def extreme(kind, count, size, random):
    if kind == "char":
        return random.choice(TEXTS).encode()[:size - 1]
    if kind == "double":
        return random.choice([0.0, -1.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan")])
    if kind.startswith("struct "):
        return {name: extreme(k, c, s, random) for name, k, c, _, s in STRUCTS[kind[7:]].fields if random.random() < 0.5}
    pool = EXTREMES["Q" if kind == "uint64_t" else "B" if kind == "uint8_t" else "I"]
    value = lambda: random.choice(pool) if random.random() < 0.8 else random.getrandbits(8 * size // count)
    return value() if count == 1 else [value() for _ in range(count)]


SANE = {"alloc": {"spec": {"size": 4096, "device": 0, "mode": 0o600}}, "attach": {"name": "m"}, "publish": {"name": "p", "mode": 0o600},
        "lock": {"n": 1}, "offload": {"sel": "m", "tier": 1}, "restore": {"sel": "m"}, "decompress": {"sel": "f"},
        "compress": {"sel": "f", "encoding": {"codec": 3}, "mode": 1, "as": "copy"}, "transfer": {"n_ranges": 1},
        "observe_batch": {"sel": "f"}, "compress_by": {"sel": "f", "encoding": {"codec": 3, "stored": 4}, "mode": 1, "as": "copy", "calibrate": "observed"}}


def fuzzed(name, random):
    """A request of right form with some fields, or all, at their extremes; waits stay short."""
    fields = {key: dict(value) if isinstance(value, dict) else value for key, value in SANE.get(name, {}).items()}
    share = random.choice([0.1, 0.3, 0.8])
    for field, kind, count, _, size in MESSAGES[name]["request"].fields:
        if field != "unused" and random.random() < share:
            wild = extreme(kind, count, size, random)
            fields[field] = {**fields.get(field, {}), **wild} if isinstance(wild, dict) else wild
    if "timeout_ms" in fields:
        fields["timeout_ms"] = random.choice([0, 1, 20])
    if "spec" in fields:
        fields["spec"]["flags"] = fields["spec"].get("flags", 0) & ~KEEP
    return fields


def random_fds(name, random):
    low, high = map(int, MESSAGES[name]["fds_in"].split("-"))
    makers = [lambda: os.memfd_create("fuzz"), lambda: sealed(bytes(random.getrandbits(8) for _ in range(random.choice([0, 31, 32, 300])))),
              lambda: sealed(table({"a": 1}, header={random.choice(["n_arenas", "n_buffers", "strings_bytes", "metadata_bytes"]):
                                                     random.choice([0, 1, 2**31, 2**32 - 1])})),
              lambda: os.open("/dev/null", os.O_RDWR)]
    return [random.choice(makers)() for _ in range(random.randint(low, high))]


def fuzz_one(link, random):
    name = random.choice([name for name in REQUESTS if name not in ("hello", "bye")])
    fds = random_fds(name, random)
    try:
        serial = link.send(name, fds, serial=0 if name in ONE_WAY else None, **fuzzed(name, random))
    finally:
        for fd in fds:
            os.close(fd)
    if name not in ONE_WAY:
        while (packet := link.receive()) is not None and packet.serial != serial:
            packet.close()
        if packet is None:
            return False
        packet.close()
    return True


@pytest.mark.parametrize("seed", range(8))
def test_every_field_at_its_extremes_is_answered_or_refused(shared, child, seed):
    """FAULTS 7: generic over the table of messages. The daemon lives, another client is served, nothing leaks."""
    put(shared, "m", b"m" * 4096)
    with Client(shared.socket) as link:
        link.hello()
        link.alloc(4096, "f", dtype=11, rank=1, dims=[1024], flags=KEEP)

    def fuzz(say):
        source = random.Random(seed)
        for _ in range(30):
            with Client(shared.socket) as link:
                link.hello()
                for _ in range(60):
                    if not fuzz_one(link, source):
                        break
        say()

    culprit = child(fuzz)
    culprit.heard(60)
    assert serves(shared)
    culprit.kill()


def test_random_bytes_end_their_link_alone(shared, child):
    """FAULTS 7."""
    def spray(say):
        source = random.Random(7)
        for _ in range(100):
            with Client(shared.socket) as link:
                link.hello()
                link.send_raw(source.randbytes(source.randint(1, 600)))
                link.gone()
        say()

    culprit = child(spray)
    culprit.heard(60)
    assert serves(shared)
    culprit.kill()
