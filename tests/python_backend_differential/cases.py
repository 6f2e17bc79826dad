# SPDX-License-Identifier: Apache-2.0
"""Everything that both servers are asked, in the order in which it is asked."""

from __future__ import annotations

from tests.python_backend_differential import (
    cases_execution,
    cases_facts,
    cases_loading,
    cases_requests,
    cases_senders,
)

CASES = (
    *cases_facts.CASES,
    *cases_requests.CASES,
    *cases_execution.CASES,
    *cases_senders.CASES,
    *cases_loading.CASES,
)
