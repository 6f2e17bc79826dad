# SPDX-License-Identifier: Apache-2.0
"""Which modules are imported once for all processes that run a kind of code."""

from __future__ import annotations

import importlib
from pathlib import Path

from pytriton.serving.repository.loading.python_loader import preloaded_modules
from pytriton.serving.repository.reading.backend_choice import BackendCode, CodeKind


def modules_of(kind: CodeKind, backend: str, *, is_ours: bool = False) -> tuple[str, ...]:
    code = BackendCode(kind=kind, backend=backend, path=Path("file"), is_ours=is_ours)
    return preloaded_modules(code)


def test_libraries_share_the_modules_that_run_them():
    (name,) = modules_of(CodeKind.LIBRARY, "identity")

    assert hasattr(importlib.import_module(name), "NativeBackend")


def test_torch_is_imported_once_for_our_backend():
    assert modules_of(CodeKind.PYTHON, "pytorch", is_ours=True) == ("torch",)


def test_code_of_others_decides_itself_what_it_imports():
    assert modules_of(CodeKind.PYTHON, "pytorch") == ()
    assert modules_of(CodeKind.MODEL, "python") == ()
