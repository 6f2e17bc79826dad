# SPDX-License-Identifier: Apache-2.0
"""The command: what it says of its options, and how it ends."""

from __future__ import annotations

from tests.operations_differential.command_line import ended
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface


def unknown_option(server: Server) -> Observation:
    return ended(server, "--no-such-option")


SURFACE = Surface(
    "command_line",
    cases=(Case("unknown option", unknown_option),),
    setup=Setup(is_started=False),
)
