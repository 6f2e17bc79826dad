# SPDX-License-Identifier: Apache-2.0
"""Test processes share the work of compiling the files of tests.

Each of them collects all files in the same order. With a fresh checkout, each would compile all of
them at the same moments, which takes as long as the rest of collecting.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sys

import pytest


def share(folders: list[pathlib.Path], number: int, count: int) -> list[pathlib.Path]:
    """The files of tests that one of so many processes compiles, the largest first.

    Left out are those for which pytest has written a compiled form already.
    """
    files = {file for folder in folders for file in folder.rglob("test_*.py")}
    order = sorted(files, key=lambda file: (-file.stat().st_size, file))
    return [
        file
        for file in order[number::count]
        if not any((file.parent / "__pycache__").glob(f"{file.stem}.*-pytest-*.pyc"))
    ]


def compile_share(config: pytest.Config) -> None:
    """Import what this process compiles for all of them, as collecting would do."""
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    folders = [config.rootpath / argument for argument in config.args]
    number = int(worker["workerid"].removeprefix("gw"))
    for file in share(folders, number, worker["workercount"]):
        name = ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        # Collecting imports it again then, and tells what is wrong.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)
