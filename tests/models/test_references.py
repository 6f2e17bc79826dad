# SPDX-License-Identifier: Apache-2.0
"""Names of functions for other processes: what has one, and what is said of the rest."""

from __future__ import annotations

import sys

import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.models.references import (
    Reference,
    add_import_paths,
    import_paths,
    is_maker,
    make_function,
    parse_reference,
    reference_to,
    resolve,
)
from tests.models import importable

HERE = "tests.models.importable"


@pytest.mark.parametrize("text", ["models:add", "package.models:Class.method", "m:f"])
def test_reference_is_a_module_and_a_name(text):
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    "text", ["", "models", "models:", ":add", "models:add:sub", "a b:c", "models.:add", "m:1"]
)
def test_text_of_another_form_is_refused(text):
    with pytest.raises(PyTritonValidationError, match="Expected 'module:function'"):
        parse_reference(text)


@pytest.mark.parametrize("text", ["models.py:add", "folder/models.py:add", "./models:add"])
def test_path_of_a_file_is_refused_with_the_name_of_its_module(text):
    with pytest.raises(PyTritonValidationError, match=r"such as 'models'") as caught:
        parse_reference(text)

    assert text in str(caught.value)


def test_dot_in_place_of_the_colon_is_refused_with_what_was_meant():
    with pytest.raises(PyTritonValidationError, match=r"got 'a.models.add'.*mean 'a.models:add'"):
        parse_reference("a.models.add")


def test_name_in_the_script_that_is_run_is_refused_with_the_way_out():
    with pytest.raises(
        PyTritonValidationError, match="got add of the script that is run"
    ) as caught:
        parse_reference("__main__:add")

    assert "bind 'module:function'" in str(caught.value)


@pytest.mark.parametrize("name", ["plain", "decorated", "factory", "Doubler", "Doubler.method"])
def test_function_of_a_module_has_a_name(name):
    function = resolve(Reference(HERE, name))

    assert reference_to(function) == (HERE, name)


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda requests: requests, "got a lambda, which has no name"),
        (importable.nested(), "got inner, which is made inside of the function nested"),
        (importable.Doubler().method, "got the method Doubler.method of an object"),
        (importable.Doubler(), "got an object of Doubler, which is only in this process"),
        (importable.renamed, "got an object of partial"),
        (importable.original_shadowed, f"got another object than {HERE}:shadowed"),
        (7, "got an object of int"),
    ],
)
def test_function_that_others_cannot_import_is_refused_with_the_way_out(function, reason):
    with pytest.raises(PyTritonValidationError) as caught:
        reference_to(function)

    assert reason in str(caught.value)
    assert "bind 'module:function'" in str(caught.value)
    assert "bind 'module:factory'" in str(caught.value)


def test_function_of_the_script_is_refused(monkeypatch):
    monkeypatch.setattr(importable.plain, "__module__", "__main__")

    with pytest.raises(PyTritonValidationError, match="got plain of the script that is run"):
        reference_to(importable.plain)


def test_function_that_was_removed_from_its_module_is_refused(monkeypatch):
    function = importable.plain
    monkeypatch.delattr(importable, "plain")

    with pytest.raises(PyTritonValidationError, match=f"the module {HERE} does not have"):
        reference_to(function)


@pytest.mark.parametrize(
    "name, makes",
    [("plain", False), ("decorated", False), ("factory", True), ("Doubler", True)],
)
def test_classes_and_what_takes_no_arguments_make_functions(name, makes):
    assert is_maker(getattr(importable, name)) is makes


def test_function_of_an_instance_is_found_or_made():
    def made_of(name):
        return make_function(getattr(importable, name), Reference(HERE, name))

    assert made_of("plain") is importable.plain
    assert made_of("factory") is importable.plain
    assert made_of("Doubler")(3) == 6


@pytest.mark.parametrize(
    "name, problem",
    [
        ("makes_nothing", "to make a function, got None"),
        ("NotCallable", "to make an object that can be called, got an object of NotCallable"),
        ("Demanding", "a class that is constructed without arguments"),
        ("value", "is of type int"),
    ],
)
def test_what_makes_no_function_is_refused(name, problem):
    with pytest.raises(PyTritonValidationError) as caught:
        make_function(getattr(importable, name), Reference(HERE, name))

    assert problem in str(caught.value)
    assert f"{HERE}:{name}" in str(caught.value)


def test_folders_of_own_modules_go_along_and_installed_ones_do_not(monkeypatch, tmp_path):
    other = str(tmp_path / "lib" / "site-packages")  # of another environment, by a .pth file
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", *sys.path, other])
    monkeypatch.chdir(tmp_path)

    paths = import_paths()

    assert paths.count(str(tmp_path)) == 1
    assert not [path for path in paths if "site-packages" in path or "lib-dynload" in path]


def test_folders_are_searched_last_and_only_if_they_exist(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)

    add_import_paths([str(tmp_path), str(tmp_path / "missing"), before[-1]])

    assert sys.path == [*before, str(tmp_path)]
