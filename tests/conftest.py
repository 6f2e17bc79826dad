# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Reports go from one process to another as UTF-8, which has no form for half a surrogate."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
