# SPDX-License-Identifier: Apache-2.0
"""Flaws of other servers that a look at the source rules out: shells, data that becomes code.

`tests/test_imports.py` has the rule that no module unpickles, evaluates or runs a shell by name.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib

import pytest

import pytriton
from tests import source_rules

PACKAGE = pathlib.Path(pytriton.__file__).parent
# It loads files of users, who allow it by an option: docs/other_backends.md has the rule.
LOADS_FILES_OF_USERS = "runtime/framework_backends/sklearn/"
# Only sources with one of these words can do what is looked for; to parse all takes long.
WORDS = ("subprocess", "pickle", "recv_pyobj")
STARTS = {"Popen", "call", "check_call", "check_output", "run"}


@dataclasses.dataclass
class Findings:
    """What one module does that data of others could misuse."""

    programs: list[ast.expr]  # the first arguments of what starts a program
    unpickles: list[int]  # the lines where a library is asked to unpickle, or may do so


def examine(text: str) -> Findings:
    calls = [
        node for node in ast.walk(source_rules.syntax_tree(text)) if isinstance(node, ast.Call)
    ]
    return Findings(
        [node.args[0] for node in calls if starts_program(node) and node.args],
        [node.lineno for node in calls if may_unpickle(node)],
    )


def starts_program(call: ast.Call) -> bool:
    name = source_rules.dotted_name(call.func)
    return name.startswith("subprocess.") and name.rpartition(".")[2] in STARTS


def may_unpickle(call: ast.Call) -> bool:
    """`numpy.load` and others take pickles if they are told to; messages of ZeroMQ always are."""
    allowed = [
        each for each in call.keywords
        if each.arg == "allow_pickle" and getattr(each.value, "value", None) is not False
    ]  # fmt: skip
    return bool(allowed) or getattr(call.func, "attr", "") in {"recv_pyobj", "read_pickle"}


def is_one_text(argument: ast.expr) -> bool:
    """Whether a program and its arguments are one text, which only a shell takes apart."""
    return isinstance(argument, ast.JoinedStr | ast.BinOp) or (
        isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


@pytest.fixture(scope="module")
def modules():
    """What each module does that has one of the words, by its path in the package."""
    texts = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    assert len(texts) > 300
    return {
        path.relative_to(PACKAGE).as_posix(): examine(text)
        for path, text in texts.items()
        if any(word in text for word in WORDS)
    }


def test_cve_2025_23316_programs_are_started_with_lists_of_arguments(modules):
    assert sum(len(each.programs) for each in modules.values()) > 5
    assert [name for name, each in modules.items() if any(map(is_one_text, each.programs))] == []


def test_shadowmq_no_bytes_become_objects_or_code(modules):
    """Also CVE-2024-50050, CVE-2024-2912 and CVE-2026-26220."""
    others = {
        name: each for name, each in modules.items() if not name.startswith(LOADS_FILES_OF_USERS)
    }

    assert len(others) < len(modules)
    assert {name: each.unpickles for name, each in others.items() if each.unpickles} == {}


@pytest.mark.parametrize(
    "text", ["subprocess.run('ls -l')", "subprocess.Popen(f'ls {x}')", "subprocess.call('ls' + x)"]
)
def test_cve_2025_23316_rule_finds_programs_in_one_text(text):
    assert [is_one_text(each) for each in examine(text).programs] == [True]


@pytest.mark.parametrize("text", ["np.load(f, allow_pickle=True)", "socket.recv_pyobj()"])
def test_shadowmq_rule_finds_what_unpickles(text):
    assert examine(text).unpickles == [1]
