# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: writes which tests failed, and what else keeps a run from being good.

In the processes of pytest-xdist it leaves out what nobody asks for.
"""

from __future__ import annotations

import json
import pathlib

import pytest
from _pytest.runner import runtestprotocol

# Options that ask for each step of a test, not for its result only.
DETAILED = ("durations", "write_durations", "xmlpath")


def pytest_addoption(parser):
    parser.addoption("--outcome", metavar="FILE", help="where the failed tests are written")


def pytest_configure(config):
    if not config.getoption("--outcome"):
        return
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(pathlib.Path(config.getoption("--outcome"))))
    elif not any(getattr(config.option, name, None) for name in DETAILED):
        config.pluginmanager.register(FewMessages())


class Report:
    """Collects what the processes of pytest-xdist report."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file
        self._failed: dict[str, None] = {}  # in their order, once each
        self._died: list[str] = []
        self._unreadable: dict[str, None] = {}
        self._passed_count = 0

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._failed[report.nodeid] = None
        elif report.when == "call" and report.passed:
            self._passed_count += 1

    def pytest_collectreport(self, report):
        if report.failed:  # each process reports it
            self._unreadable[report.nodeid] = None

    # Hooks of pytest-xdist, which is not there when failed tests run again.

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        if error:
            self._died.append(f"no test, in process {node.gateway.id}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem):
        """Called after `pytest_testnodedown` if the process had a test to run."""
        self._died[-1] = crashitem

    def pytest_sessionfinish(self):
        outcome = {
            "failed": list(self._failed),
            "died": self._died,
            "unreadable": list(self._unreadable),
            "passed_count": self._passed_count,
        }
        self._file.write_text(json.dumps(outcome))


class FewMessages:
    """Tells the first process once of a test that passed.

    Otherwise it is told six times, which takes longer than most tests.
    """

    @pytest.hookimpl(tryfirst=True)  # pytest's own is not called then
    def pytest_runtest_protocol(self, item, nextitem):
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.passed and report.when != "call":
                continue
            if report.passed:
                report.keywords = {}  # a dozen strings, which only matter for skipped tests
            item.ihook.pytest_runtest_logreport(report=report)
        return True
