# SPDX-License-Identifier: Apache-2.0
"""Packages that backends need: how they are imported, and what is said where they are missing."""

from __future__ import annotations

import json

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.runtime.framework_backends.shared import import_wheel


def test_module_of_an_installed_package_is_imported():
    assert import_wheel("json", "x", "mine") is json


@pytest.mark.parametrize("module", ["not_installed_anywhere", "not_installed_anywhere.io"])
def test_missing_package_is_named_with_what_installs_it(module):
    with pytest.raises(UnavailableError) as caught:
        import_wheel(module, "mine", "mine")

    assert caught.value.message == (
        "backend 'mine' needs not_installed_anywhere: pip install 'pytriton[mine]'"
    )


def test_module_that_an_installed_package_misses_is_reported_as_python_does(tmp_path, monkeypatch):
    (tmp_path / "broken_wheel.py").write_text("import not_installed_anywhere")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        import_wheel("broken_wheel", "x", "mine")
