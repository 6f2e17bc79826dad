# SPDX-License-Identifier: Apache-2.0
"""The parts of the suite, and the packages that each of them may use."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from tests import parts

REPOSITORY = pathlib.Path(__file__).parent.parent
FILES = sorted(
    path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "tests").rglob("test_*.py")
)


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


def test_no_file_is_in_two_parts():
    owned = [path for paths in parts.FOLDERS.values() for path in paths]

    doubled = [path for path in owned for other in owned if f"{path}/".startswith(f"{other}/")]

    assert doubled == owned


@pytest.mark.parametrize("part", parts.FOLDERS)
def test_table_names_what_is_there(part):
    missing = [path for path in parts.FOLDERS[part] if not (REPOSITORY / path).exists()]

    assert missing == []


def test_every_part_has_tests_and_an_extra_and_every_extra_has_a_part():
    text = (REPOSITORY / "pyproject.toml").read_text()

    assert set(map(parts.part_of, FILES)) == set(parts.PARTS)
    assert sorted(re.findall(r"^test-(\w+) = ", text, re.MULTILINE)) == sorted(parts.PARTS)


@pytest.mark.parametrize("file", FILES)
def test_file_imports_only_what_its_part_installs(file):
    part = parts.part_of(file)

    foreign = {
        name: sorted(parts.PACKAGES[name])
        for name in needed_packages(file, set())
        if part not in parts.PACKAGES[name]
    }

    assert foreign == {}
