# SPDX-License-Identifier: Apache-2.0
"""What both servers are asked about backends in C."""

from __future__ import annotations

from tests.native_backend.cases_facts import FACT_CASES
from tests.native_backend.cases_loading import LOADING_CASES
from tests.native_backend.cases_requests import REQUEST_CASES
from tests.recorded_suite import Case

CASES: list[Case] = [*FACT_CASES, *REQUEST_CASES, *LOADING_CASES]
