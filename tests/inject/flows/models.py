"""How models and files come and go."""
import os

from world import DATA
from helpers import Program, hash_of, layers, shards
from wire import REPLACE, WAIT
from flows.common import expect, flow, publish


@flow("owner", "worker", "client")
def publish_and_commit(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck() as it:
        index, must_build = user.ask("publish", "built", 0, 5000, 3, 1000)
        world.seen(user, "mfill", index, 5)
        user.ask("commit", index)
    if it.done:
        expect(must_build == "1", "nobody was asked to build")
        expect(len(world.at_last(lambda: hash_of(world.daemon, "model:built"))) == 3, "the model lacks tensors")


@flow("owner", "worker", "client")
def publish_and_abort(world, struck):
    user = world.program()
    user.ask("open", 0)
    with struck():
        index, _ = user.ask("publish", "built", 0, 5000, 2, 1000)
        user.ask("abort", index)


@flow("owner", "worker", "client")
def replace_a_model(world, struck):
    user = world.program()
    user.ask("open", 0)
    publish(world, user, 0)
    reader, _ = user.ask("model", "built", "ro", 0, 5000)
    before = world.seen(user, "msum", reader)
    with struck():
        publish(world, user, REPLACE)
    expect(world.seen(user, "msum", reader) == before, "what a reader has of a model changed as it was replaced")


@flow("owner", "client")
def wait_for_a_model(world, struck):
    user = world.program()
    user.ask("open", 0)
    builder = Program(world.client_path, world.daemon)
    builder.ask("open", 0)
    index, _ = builder.ask("publish", "built", 0, 5000, 2, 1000)
    with struck():
        user.say("model", "built", "ro", WAIT, 1000)
        try:
            builder.ask("commit", index)
        finally:
            user.hear()
    builder.end()


@flow("owner", "worker", "ctl")
def load(world, struck):
    with struck() as it:
        world.ctl("load", world.file, "--as", "loaded")
    if it.done:
        wanted = {name.replace("model/", "loaded/"): hash_ for name, hash_ in world.hashes.items() if name.startswith("model/")}
        expect(world.at_last(lambda: hash_of(world.daemon, "model:loaded")) == wanted, "the loaded model has other bytes")


@flow("owner", "worker", "ctl")
def save(world, struck):
    target = world.daemon.home / "saved.safetensors"
    with struck() as it:
        world.ctl("save", "model", target)
    if it.done:
        expect(target.stat().st_size == os.stat(world.file).st_size, "the saved file is short")
    left = [path.name for path in world.daemon.home.iterdir() if path.name.startswith(".hbm-")]
    expect(not left, f"{left} is left behind")
    target.unlink(missing_ok=True)


@flow("ctl")
def replace_by_shards_and_save(world, struck):
    source, target = world.daemon.home / "shards", world.daemon.home / "saved"
    for folder in (source, target):
        folder.mkdir(exist_ok=True)
    shards(source, layers(2))
    world.ctl("load", world.file, "--as", "loaded")
    with struck() as it:
        world.ctl("load", source, "--as", "loaded", "--replace")
        world.ctl("save", "loaded", target)
    for path in source.iterdir():
        if it.done:
            expect((target / path.name).read_bytes() == path.read_bytes(), "a shard was saved with other bytes")
        (target / path.name).unlink(missing_ok=True)
    left = [path.name for path in target.iterdir()]
    expect(not left, f"{left} is left behind")


@flow("owner", "worker", "ctl")
def put_and_get(world, struck):
    source, target = world.daemon.home / "source", world.daemon.home / "target"
    source.write_bytes(DATA)
    with struck() as it:
        world.ctl("put", "fresh", source)
        world.ctl("get", "fresh", target)
    if it.done:
        expect(target.read_bytes() == DATA, "what was got is not what was put")
    left = [path.name for path in world.daemon.home.iterdir() if path.name.startswith(".hbm-")]
    expect(not left, f"{left} is left behind")
    target.unlink(missing_ok=True)
