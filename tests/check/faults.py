#!/usr/bin/env python3
"""Every line of tests/faults.md and tests/cases.md has tests that carry its number, and every mutation fits the code. --list: which."""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests/mutate"))
from mutations import MUTATIONS  # noqa: E402 pylint: disable=wrong-import-position

LISTS = {"FAULTS": "tests/faults.md", "CASES": "tests/cases.md"}


def numbers(word, text):
    """"FAULTS 13, 16-18 and 22" -> {13, 16, 17, 18, 22}"""
    found = set()
    for match in re.finditer(word + r" ((?:\d+|-|, | and )+)", text or ""):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", match[1]):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def python_tests(word, path):
    """Of a file of flows: what each test says, and what the file says for tests that say nothing of their own."""
    tree = ast.parse(path.read_text())
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    own = {test.name: numbers(word, ast.get_docstring(test)) for test in tests}
    unclaimed = numbers(word, ast.get_docstring(tree)) - set().union(*own.values(), set())
    return {f"{path.relative_to(ROOT)}::{name}": said | unclaimed for name, said in own.items()}


def tests_by_number(word="FAULTS"):
    """{number: [test]}: a flow by its node id, a C program or script by its path."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix == ".py" and path.name.startswith("test_"):
            tests = python_tests(word, path)
        elif path.suffix in (".c", ".cu", ".sh") or path.parent.name == "inject":
            tests = {str(path.relative_to(ROOT)): numbers(word, path.read_text())} if path.is_file() else {}
        else:
            continue
        for test, said in tests.items():
            for number in said:
                found.setdefault(number, []).append(test)
    return found


def listed(word="FAULTS"):
    """{number: sentence}"""
    lines = re.findall(r"^(\d+)\. (.*(?:\n {4}.*)*)", (ROOT / LISTS[word]).read_text(), re.M)
    return {int(number): re.sub(r"\s+", " ", text) for number, text in lines}


def check(word):
    """How many numbers are not as they should be."""
    sentences, tests = listed(word), tests_by_number(word)
    failed = 0
    for number, sentence in sentences.items():
        if "--list" in sys.argv:
            print(f"{number}. {sentence}", *(f"      {test}" for test in tests.get(number, [])), sep="\n")
        if number in tests:
            print(f"ok - {word} {number}: tests that carry it: {len(tests[number])}")
        else:
            print(f"FAIL - {word} {number} has no test that carries its number: {sentence}")
            failed += 1
    for number in sorted(set(tests) - set(sentences)):
        print(f"FAIL - {tests[number][0]} carries {word} {number}, which {LISTS[word]} has not")
        failed += 1
    return failed


def check_mutations():
    """How many have nothing to break any more: `make mutate` would find out after an hour."""
    failed = 0
    for number, what, path, old, _ in MUTATIONS:
        times = (ROOT / path).read_text().count(old)
        if times != 1:
            print(f"FAIL - FAULTS {number}, \"{what}\": {path} has the text of this mutation {times} times: bring it up to date")
            failed += 1
    if not failed:
        print(f"ok - mutations that fit the code: {len(MUTATIONS)}")
    return failed


if __name__ == "__main__":
    sys.exit(1 if sum(map(check, LISTS)) + check_mutations() else 0)
