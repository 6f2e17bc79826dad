# SPDX-License-Identifier: Apache-2.0
"""Servers for what PyTriton's documentation promises, one file of tests for each of its pages."""

from __future__ import annotations

from tests.e2e.conftest import (  # noqa: F401  fixtures of these tests too
    host,
    ports,
    run_triton,
    running_host,
    start_script,
    workspace_home,
)
