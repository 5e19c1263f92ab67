#!/usr/bin/env python3
"""Every line of tests/faults.md has tests that carry its number. --list: which."""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NUMBERS = re.compile(r"FAULTS ((?:\d+|-|, | and )+)")


def numbers(text):
    """"FAULTS 13, 16-18 and 22" -> {13, 16, 17, 18, 22}"""
    found = set()
    for match in NUMBERS.finditer(text or ""):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", match[1]):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def python_tests(path):
    """Of a file of flows: what each test says, and what the file says for tests that say nothing of their own."""
    tree = ast.parse(path.read_text())
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    own = {test.name: numbers(ast.get_docstring(test)) for test in tests}
    unclaimed = numbers(ast.get_docstring(tree)) - set().union(*own.values(), set())
    return {f"{path.relative_to(ROOT)}::{name}": said | unclaimed for name, said in own.items()}


def tests_by_fault():
    """{number: [test]}: a flow by its node id, a C program or script by its path."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix == ".py" and path.name.startswith("test_"):
            tests = python_tests(path)
        elif path.suffix in (".c", ".cu", ".sh") or path.parent.name == "inject":
            tests = {str(path.relative_to(ROOT)): numbers(path.read_text())} if path.is_file() else {}
        else:
            continue
        for test, said in tests.items():
            for number in said:
                found.setdefault(number, []).append(test)
    return found


def faults():
    """{number: sentence}"""
    lines = re.findall(r"^(\d+)\. (.*(?:\n {4}.*)*)", (ROOT / "tests/faults.md").read_text(), re.M)
    return {int(number): re.sub(r"\s+", " ", text) for number, text in lines}


def main():
    listed, tests = faults(), tests_by_fault()
    failed = 0
    for number, sentence in listed.items():
        if "--list" in sys.argv:
            print(f"{number}. {sentence}", *(f"      {test}" for test in tests.get(number, [])), sep="\n")
        if number in tests:
            print(f"ok - fault {number} has {len(tests[number])} tests")
        else:
            print(f"FAIL - fault {number} has no test that carries its number: {sentence}")
            failed += 1
    for number in sorted(set(tests) - set(listed)):
        print(f"FAIL - {tests[number][0]} carries number {number}, which tests/faults.md has not")
        failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
