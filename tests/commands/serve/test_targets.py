# SPDX-License-Identifier: Apache-2.0
"""What is found in files and modules, and what is said if there is nothing to serve."""

from __future__ import annotations

import sys
import textwrap

import pytest

from pytriton.tools.commands.serve.command import ServeScreen
from pytriton.tools.commands.serve.loading import (
    ServeTarget,
    TargetError,
    contents_of,
    import_target,
)
from pytriton.utils.terminal import Colour, paint


@pytest.fixture(autouse=True)
def _same_modules(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.fixture
def found_in(tmp_path, monkeypatch):
    """Finds what is served of a source text, as a target in the working directory names it."""
    monkeypatch.chdir(tmp_path)

    def find(source, target="code_of_a_test.py"):
        (tmp_path / "code_of_a_test.py").write_text(textwrap.dedent(source))
        parsed = ServeTarget.parse(target)
        return contents_of(import_target(parsed), parsed)

    return find


FUNCTIONS = """
    from dataclasses import dataclass
    from math import sqrt

    @dataclass
    class Pair:
        a: float

    class Model:
        def __call__(self, a: float) -> float: ...

    def add(a: float) -> Pair: ...

    def helper(a): ...

    def _private(a: float) -> float: ...

    scale = 5
"""


def test_public_functions_and_classes_with_annotations_are_served(found_in):
    contents = found_in(FUNCTIONS)

    assert [each.name for each in contents.found] == ["Model", "add"]
    assert contents.skipped == [
        "helper (code_of_a_test.py, line 14): parameter `a` has no type annotation"
    ]


def test_only_declared_models_are_served_if_there_are_any(found_in):
    contents = found_in(
        """
        from pytriton.decorators import model

        def add(a: float) -> float: ...

        @model(name="Twice")
        def double(a: float) -> float: ...

        again = double
        """
    )

    assert [each.name for each in contents.found] == ["Twice"]
    assert [each.split(":")[0] for each in contents.forgotten] == ["add"]


def test_declared_models_may_be_imported(found_in, tmp_path):
    (tmp_path / "others_of_a_test.py").write_text(
        "from pytriton.decorators import model\n@model\ndef double(a: float) -> float: ...\n"
    )

    contents = found_in("from others_of_a_test import double\n")

    assert [each.name for each in contents.found] == ["double"]


@pytest.mark.parametrize(
    "target, names",
    [
        ("code_of_a_test.py:helper", ["helper"]),
        ("code_of_a_test.py:add,Model", ["add", "Model"]),
        ("code_of_a_test:add", ["add"]),
        ("code_of_a_test", ["Model", "add"]),
    ],
)
def test_objects_and_modules_can_be_named(found_in, target, names):
    assert [each.name for each in found_in(FUNCTIONS, target).found] == names


@pytest.mark.parametrize(
    "target, problem",
    [
        ("missing.py", "Expected a file, but missing.py does not exist."),
        ("missing_module", "Expected a file or a module, got 'missing_module'."),
        ("missing.module:f", "Expected a file or a module, got 'missing.module'."),
        ("code_of_a_test.py:nope", "`nope` in code_of_a_test.py, which has Model, add, helper."),
        ("code_of_a_test.py:scale", "`scale` in code_of_a_test.py is of type int."),
        ("code_of_a_test.py:a b", "Expected FILE.py:object with the name of an object"),
    ],
)  # fmt: skip
def test_missing_target_is_told(found_in, target, problem):
    with pytest.raises(TargetError) as error:
        found_in(FUNCTIONS, target)

    assert problem in str(error.value)


def test_file_without_anything_to_serve_says_what_it_has(found_in):
    with pytest.raises(TargetError) as error:
        found_in("def f(x): ...\ndef g(a: dict) -> float: ...\n")

    first, _, about_f, about_g = str(error.value).splitlines()
    assert first == "Expected functions with type annotations in code_of_a_test.py, found none."
    assert about_f.startswith("  f (code_of_a_test.py, line 1): parameter `x` has no type annotati")
    assert "TypedDict" in about_g


def test_empty_file_gets_an_example(found_in):
    with pytest.raises(TargetError, match=r"found none.\nFor example: def double"):
        found_in("")


def test_file_with_the_name_of_another_module_does_not_replace_it(tmp_path):
    (tmp_path / "json.py").write_text("def f(a: float) -> float: ...\n")
    before = sys.modules["json"]

    module = import_target(ServeTarget.parse(str(tmp_path / "json.py")))

    assert module.__name__ == "served_json"
    assert sys.modules["json"] is before


def test_functions_without_the_decorator_that_others_have_are_told(found_in):
    contents = found_in("""
        from pytriton.decorators import model

        @model
        def add(a: float) -> float: ...

        def forgotten(a: float) -> float: ...

        def helper(a): ...

        def _private(a: float) -> float: ...
    """)

    assert [each.name for each in contents.found] == ["add"]
    assert contents.skipped == []
    (told,) = contents.forgotten
    assert told.startswith("forgotten: without @model, which others in code_of_a_test.py have. ")
    assert told.endswith("or name all that is to be served: code_of_a_test.py:NAME,NAME")


def test_forgotten_functions_are_a_warning_and_helpers_a_note(monkeypatch, capsys):
    monkeypatch.setattr("pytriton.tools.commands.serve.command.says_in_colour", lambda: True)
    ServeScreen().left_out(["helper: no annotations"], ["add: without @model"])

    assert capsys.readouterr().err.splitlines() == [
        paint("Not served: helper: no annotations", Colour.DIM),
        paint("Not served: add: without @model", Colour.YELLOW),
    ]
