# SPDX-License-Identifier: Apache-2.0
"""Everything that clients are asked."""

from __future__ import annotations

from tests.client_differential import (
    cases_access,
    cases_asyncio,
    cases_futures,
    cases_helpers,
    cases_inputs,
    cases_lives,
    cases_requests,
    cases_streams,
    cases_surface,
    cases_waiting,
)

CASES = (
    *cases_inputs.CASES,
    *cases_requests.CASES,
    *cases_streams.CASES,
    *cases_waiting.CASES,
    *cases_lives.CASES,
    *cases_futures.CASES,
    *cases_asyncio.CASES,
    *cases_access.CASES,
    *cases_helpers.CASES,
    *cases_surface.CASES,
)
