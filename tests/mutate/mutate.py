#!/usr/bin/env python3
"""Breaks the code on purpose, one place at a time, and sees the tests of that fault fail (tests/faults.md).

usage: mutate.py BUILD [NUMBER...]      the faults to do, all if none is named
Works on a copy of the tree under BUILD/mutate, on the host device. A mutation counts as caught when a test that carries
its fault's number fails or hangs. Ends with how many were tried and caught; 1 if one was not tried or not caught.
"""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/check"), str(ROOT / "tests/mutate")]
from faults import listed, tests_by_number  # noqa: E402
from mutations import MUTATIONS  # noqa: E402

SECONDS_A_TEST_RUN = 240


def copy_tree(to):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        source, target = ROOT / name, to / name
        # With a time of now, and only what is another: an object of a mutation before would be newer than its source.
        if source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def make(tree):
    # BUILD again: make hands the one that it was itself given on.
    return subprocess.run(["make", f"-j{os.cpu_count()}", "BUILD=build", "NVCC=", "programs", "unit-tests"], cwd=tree, check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def collected(tree):
    """The flows that run here: some want a GPU."""
    found = subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests/flow"], cwd=tree,
                            env=dict(os.environ, HBM_BUILD=str(tree / "build")), check=True, capture_output=True, text=True)
    return {line.split("[")[0] for line in found.stdout.splitlines() if "::" in line}


def commands(tests):
    """What runs these tests; GPU programs cannot run here."""
    unit = sorted({"build/tests/" + ("test_core" if pathlib.Path(test).name.startswith("core_") else pathlib.Path(test).stem)
                   for test in tests if test.startswith("tests/unit/")})
    flows = [test for test in tests if "::" in test]
    if flows:
        yield [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *flows]
    for program in unit:
        yield [program]
    if "tests/inject/run.py" in tests:
        yield [sys.executable, "tests/inject/run.py", "short"]


def first_failure(tree, tests):
    """The command that failed; None if all pass."""
    environment = dict(os.environ, HBM_BUILD=str(tree / "build"), PYTHONDONTWRITEBYTECODE="1")
    for command in commands(tests):
        try:
            done = subprocess.run(command, cwd=tree, env=environment, check=False, timeout=SECONDS_A_TEST_RUN,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except subprocess.TimeoutExpired:
            return "it hangs"
        if done.returncode:
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAIL", "ERROR", "[  FAILED  ]"))]
            return failed[0] if failed else f"{command[0]} ended with {done.returncode}"
    return None


class Mutated:
    """The tree with one place changed, put back at the end."""

    def __init__(self, path, old, new):
        self.path, self.text = path, path.read_text()
        if self.text.count(old) != 1:
            raise LookupError(f"{path.name} has the text of this mutation {self.text.count(old)} times: bring it up to date")
        self.changed = self.text.replace(old, new)

    def __enter__(self):
        self.path.write_text(self.changed)

    def __exit__(self, *_):
        self.path.write_text(self.text)


def main():
    build, wanted = pathlib.Path(sys.argv[1]), {int(number) for number in sys.argv[2:]}
    tree = (build / "mutate").resolve()
    copy_tree(tree)
    if make(tree).returncode:
        print("the tree does not build as it is", file=sys.stderr)
        return 1
    here, sentences, whole = collected(tree), listed(), {}
    tests = {number: [test for test in of if "::" not in test or test in here] for number, of in tests_by_number().items()}
    tried = caught = skipped = 0
    for number, what, file, old, new in MUTATIONS:
        if wanted and number not in wanted:
            continue
        if number not in whole:
            make(tree)
            whole[number] = first_failure(tree, tests.get(number, []))
        if whole[number]:
            skipped += 1
            print(f"FAIL - {number}: its tests fail on the tree as it is: {whole[number]}", flush=True)
            continue
        tried += 1
        try:
            with Mutated(tree / file, old, new):
                broken = make(tree)
                if broken.returncode:
                    raise LookupError(f"it does not build: {broken.stderr[-500:]}")
                why = first_failure(tree, tests.get(number, []))
        except LookupError as stale:
            print(f"FAIL - {number}: {what}: {stale}", flush=True)
            continue
        caught += bool(why)
        print(f"{'ok' if why else 'FAIL'} - {number}: {what}: {why or 'no test of ' + sentences[number][:60] + ' noticed'}", flush=True)
    print(f"{tried} mutations tried, {caught} caught" + f", {skipped} could not be tried" * bool(skipped))
    return 0 if tried and caught == tried and not skipped else 1


if __name__ == "__main__":
    sys.exit(main())
