# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hypothesis
import pytest

# No test has a time limit: a machine may be busy with other things.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Reports go from one process to another as UTF-8, which has no form for half a surrogate."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
