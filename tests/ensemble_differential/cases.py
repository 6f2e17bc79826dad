# SPDX-License-Identifier: Apache-2.0
"""Everything that both servers are asked, in the order in which it is asked."""

from __future__ import annotations

from tests.ensemble_differential import (
    cases_failing,
    cases_lives,
    cases_loading,
    cases_running,
    cases_streams,
    cases_waiting,
)

CASES = (
    *cases_running.CASES,
    *cases_failing.CASES,
    *cases_streams.CASES,
    *cases_waiting.CASES,
    *cases_lives.CASES,
    *cases_loading.CASES,
)
