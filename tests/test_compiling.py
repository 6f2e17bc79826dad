# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import sys
from types import SimpleNamespace

import pytest

from tests.compiling import compile_share, share


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of tests in a folder that no module was imported from; one cannot be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "compiling_cases"
    folder.mkdir()
    for number in range(5):
        (folder / f"test_case_{number}.py").write_text("value = 1\n" * (10 - number))
    (folder / "test_case_3.py").write_text("raise RuntimeError\n")
    yield folder
    for name in [name for name in sys.modules if name.startswith("compiling_cases")]:
        del sys.modules[name]


def config(folder, number, count=2):
    worker = {"workerid": f"gw{number}", "workercount": count}
    return SimpleNamespace(workerinput=worker, rootpath=folder.parent, args=[folder.name])


def imported():
    names = [name for name in sys.modules if name.startswith("compiling_cases.")]
    return sorted(name.rpartition("_")[2] for name in names)


def test_files_that_are_compiled_are_left_out(files):
    (files / "__pycache__").mkdir()
    (files / "__pycache__" / "test_case_0.cpython-311-pytest-9.0.0.pyc").touch()
    (files / "__pycache__" / "test_case_1.cpython-311.pyc").touch()  # without pytest

    assert [path.stem[-1] for path in share([files], 0, 1)] == ["1", "2", "4", "3"]


def test_each_process_imports_other_files(files):
    compile_share(config(files, 0))
    first = imported()
    compile_share(config(files, 1))

    assert first == ["0", "2"]
    assert imported() == ["0", "1", "2", "4"]  # the third raises, which collecting tells


def test_single_process_and_one_that_may_not_write_import_nothing(files, monkeypatch):
    compile_share(SimpleNamespace(rootpath=pathlib.Path(files.parent), args=[files.name]))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    compile_share(config(files, 0))

    assert imported() == []
