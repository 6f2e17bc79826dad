# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: says which file is running, and at the end which tests failed.

A file named by the process has the path of the test file that runs in it now.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections import Counter

import pytest


def pytest_addoption(parser):
    parser.addoption("--watch", metavar="FOLDER", help="where this is written")


def pytest_configure(config):
    if folder := config.getoption("--watch"):
        is_worker = hasattr(config, "workerinput")
        config.pluginmanager.register(Watch(pathlib.Path(folder), is_worker=is_worker))


class Watch:
    """With pytest-xdist, each process says what runs in it, and the first of them what failed."""

    def __init__(self, folder: pathlib.Path, *, is_worker: bool) -> None:
        self._folder = folder
        self._is_worker = is_worker
        self._file = ""
        self._failed: dict[str, None] = {}
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self._watch(item.nodeid)

    def pytest_collectstart(self, collector):
        if isinstance(collector, pytest.Module):  # it runs code of the source while it is imported
            self._watch(collector.nodeid)

    def _watch(self, nodeid: str) -> None:
        file = nodeid.partition("::")[0]
        if file != self._file:
            self._file = file
            new = self._folder / f"next-{os.getpid()}"
            new.write_text(file)
            new.replace(self._folder / str(os.getpid()))  # others never read half of it

    def pytest_runtest_logreport(self, report):
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report):
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self):
        if not self._is_worker:
            outcome = {"failed": list(self._failed), "seconds": self._seconds}
            (self._folder / "outcome.json").write_text(json.dumps(outcome))
