# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: writes which tests failed, and in which ones a test process died."""

from __future__ import annotations

import json
import pathlib


def pytest_addoption(parser):
    parser.addoption("--outcome", metavar="FILE", help="where the failed tests are written")


def pytest_configure(config):
    if config.getoption("--outcome") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(pathlib.Path(config.getoption("--outcome"))))


class Report:
    """Collects what the processes of pytest-xdist report."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file
        self._failed: dict[str, None] = {}  # in their order, once each
        self._died: list[str] = []

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_testnodedown(self, node, error):
        if error:
            self._died.append(f"no test, in process {node.gateway.id}")

    def pytest_handlecrashitem(self, crashitem):
        """Called after `pytest_testnodedown` if the process had a test to run."""
        self._died[-1] = crashitem

    def pytest_sessionfinish(self):
        self._file.write_text(json.dumps({"failed": list(self._failed), "died": self._died}))
