# SPDX-License-Identifier: Apache-2.0
"""Every compared request."""

from __future__ import annotations

from tests.differential import cases_forms, cases_generate, cases_mistakes, cases_server

CASES = [
    *cases_server.CASES,
    *cases_forms.CASES,
    *cases_mistakes.CASES,
    *cases_generate.CASES,
]
