# SPDX-License-Identifier: Apache-2.0
"""Trace settings and the files of traces."""

from __future__ import annotations

from tests.operations_differential.asking import both
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Surface


def settings(server: Server) -> Observation:
    return both(server, "/v2/trace/setting", None, "TraceSetting")


SURFACE = Surface("tracing", cases=(Case("settings at the start", settings),))
