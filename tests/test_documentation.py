# SPDX-License-Identifier: Apache-2.0
"""What docstrings say about models."""

from __future__ import annotations

import dataclasses
import functools

import msgspec
import pytest

from pytriton.base.documentation import (
    MAX_TEXT,
    Documentation,
    docstring_of,
    examples_to_show,
    read_docstring,
)
from pytriton.models.binding import BindArguments, make_model
from pytriton.serving.repository.reading.config_files import docstring_in


def greet(name: str, excited: bool = False) -> str:
    """Greet a person by name.

    This is for readers of the code.

    Args:
        name: Whom to greet,
            in any language.
        excited (bool): How.

    Returns:
        The greeting.

    Raises:
        ValueError: Never.
    """
    return name


def test_first_paragraph_and_sections_are_read():
    assert read_docstring(greet.__doc__) == Documentation(
        text="Greet a person by name.",
        inputs={"name": "Whom to greet, in any language.", "excited": "How."},
        output="The greeting.",
    )


@pytest.mark.parametrize("docstring", [None, "", "   \n ", "x" * 200_000])
def test_docstring_without_a_use_says_nothing(docstring):
    assert read_docstring(docstring) == Documentation()


def test_long_text_is_cut_and_can_be_sent():
    read = read_docstring("word " * 1000 + "\udc80")

    assert len(read.text) == MAX_TEXT
    assert msgspec.msgpack.encode(read_docstring("\udc80"))


class Inherited:
    """Of the base class."""

    def __call__(self, x: int) -> int:
        """Of the method."""
        return x


class Plain(Inherited):
    def __call__(self, x: int) -> int:
        """Of the own method."""
        return x


@dataclasses.dataclass
class Settings:
    size: int = 1

    def __call__(self, x: int) -> int:
        """Of the method of a dataclass."""
        return x


@pytest.mark.parametrize(
    "function, text",
    [
        (functools.partial(greet, excited=True), greet.__doc__),
        (Inherited, "Of the base class."),
        (Inherited(), "Of the base class."),
        (Plain(), "Of the own method."),
        (Settings(), "Of the method of a dataclass."),
        (lambda x: x, None),
    ],
)
def test_docstring_is_that_of_the_callable_itself(function, text):
    assert docstring_of(function) == text


def test_bound_function_brings_its_documentation():
    model = make_model(BindArguments(greet))

    assert model.documentation.text == "Greet a person by name."
    assert model.documentation.examples == {"excited": False}


def test_list_of_functions_brings_the_documentation_of_the_first():
    model = make_model(BindArguments("greet", [greet, greet]))

    assert model.documentation.text == "Greet a person by name."


@pytest.mark.parametrize(
    "value, is_shown",
    [
        (1, True),
        ("text", True),
        ([1, 2], True),
        (2**70, False),
        ("x" * 1000, False),
        ("\ud800", False),
    ],
)
def test_examples_that_are_too_large_are_left_out(value, is_shown):
    assert examples_to_show({"x": value}) == ({"x": value} if is_shown else {})


@pytest.mark.parametrize(
    "source, text",
    [
        ('class TritonPythonModel:\n    """Doubles."""\n', "Doubles."),
        ("class TritonPythonModel:\n    pass\n", None),
        ('class Other:\n    """TritonPythonModel"""\n', None),
        ("class TritonPythonModel(:\n", None),
        ("class TritonPythonModel: 'x'\n" + "#" * (1 << 20), None),
    ],
)
def test_docstring_of_a_model_file_is_found_without_running_it(source, text):
    assert docstring_in(source) == text
