# SPDX-License-Identifier: Apache-2.0
"""The parts of the suite, and the packages that each of them may use."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

from tests import parts

REPOSITORY = pathlib.Path(__file__).parent.parent
FILES = sorted(
    path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "tests").rglob("test_*.py")
)


@functools.cache
def imported_modules(file: str) -> set[str]:
    """The modules that a file imports when pytest collects it."""
    names: set[str] = set()
    statements = list(ast.parse((REPOSITORY / file).read_text()).body)
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            names.add(statement.module)
            names.update(f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, (ast.If, ast.Try)):
            statements.extend(statement.body)
    return names


def needed_packages(file: str, seen: set[str]) -> set[str]:
    """The packages of parts that a file and the helpers that it imports need."""
    seen.add(file)
    found: set[str] = set()
    for name in imported_modules(file):
        found.add(name.partition(".")[0])
        helper = name.replace(".", "/") + ".py"
        if name.startswith("tests.") and helper not in seen and (REPOSITORY / helper).is_file():
            found |= needed_packages(helper, seen)
    return found & set(parts.PACKAGES)


def test_no_path_is_in_two_parts():
    owned = [path for part in parts.PARTS.values() for path in part.files]

    assert sorted(set(owned)) == sorted(owned)


def test_most_exact_path_decides_to_which_part_a_file_belongs():
    assert parts.part_of("tests/e2e/test_tls.py") == "servers"
    assert parts.part_of("tests/e2e/test_memory.py") == "resilience"
    assert parts.part_of("tests/e2e/test_binding.py") == parts.QUICK
    assert parts.part_of("tests/engine/test_engine.py") == parts.QUICK


def test_table_names_what_is_there():
    named = [path for part in parts.PARTS.values() for path in (*part.files, *part.covers)]
    named += [*parts.WITH_FRONT_ENDS, *parts.NOT_WITH_FRONT_ENDS]

    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_every_part_has_tests_and_an_extra_and_every_extra_has_a_part():
    text = (REPOSITORY / "pyproject.toml").read_text()
    extras = {f"test-{part.extra}" for part in parts.PARTS.values()}
    marked = set().union(*map(parts.marked_parts, FILES))

    assert set(map(parts.part_of, FILES)) | marked == set(parts.PARTS)
    assert set(re.findall(r"^(test-\w+) = ", text, re.MULTILINE)) == extras


def test_files_import_only_what_their_part_installs():
    foreign = {
        (file, package)
        for file in FILES
        for package in needed_packages(file, set())
        if parts.PARTS[parts.part_of(file)].extra not in parts.PACKAGES[package]
    }

    assert foreign == set()


@pytest.mark.parametrize(
    "arguments, chosen, rest",
    [
        ([], ["quick"], []),
        (["-x"], ["quick"], ["-x"]),
        (["page", "cluster", "-x"], ["cluster", "page"], ["-x"]),
        (["tests/page"], ["page"], ["tests/page"]),
        (["tests/page/test_page_api.py::test"], ["page"], ["tests/page/test_page_api.py::test"]),
        (["quick", "tests/page"], ["quick"], ["tests/page"]),
        (["-k", "nothing"], ["quick"], ["-k", "nothing"]),
    ],
)
def test_parts_are_chosen_by_name_or_by_files(arguments, chosen, rest):
    assert parts.choose(arguments) == (chosen, rest)


def test_all_parts_are_chosen_by_one_word():
    assert parts.choose(["--all"]) == (list(parts.PARTS), [])


def test_part_installs_its_packages_only():
    page = parts.requirements(["quick", "page"], "torch==2.13.0")
    backends = parts.requirements(["backends"], "torch==2.13.0")

    assert page == {
        "extras": "test-core test-page",
        "tools": "page tests",
        "torch": "",
        "peers": "",
    }
    assert backends["torch"] == "torch==2.13.0"
