# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc

import hypothesis
import pytest

from tests.compiling import compile_share
from tests.long_files import long_files_first

# No test has a time limit: a machine may be busy with other things.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config):
    """Files start in the order of `long_files_first`, not those of many tests first."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = [items[index] for index in long_files_first([item.nodeid for item in items])]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collections of garbage leave out what stays: the modules and items of all tests.

    Looking through them while they are made takes two seconds, and with them each `gc.collect()`
    of a test takes a third of a second.
    """
    gc.disable()
    try:
        compile_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Reports go from one process to another as UTF-8, which has no form for half a surrogate."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
