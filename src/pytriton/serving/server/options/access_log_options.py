# SPDX-License-Identifier: Apache-2.0
"""The settings of the access log."""

from __future__ import annotations

import msgspec

from pytriton.serving.server.options.flags import Flags

PLAIN, JSON = "plain", "json"


class AccessLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line for each request goes, and how it looks."""

    file: str | None = None  # `-`: standard output; None: there is no access log
    format: str = PLAIN
    health: bool = True  # questions about health have lines, too


def read_access_log_options(flags: Flags) -> AccessLogOptions:
    """Read the settings of the access log; raises PyTritonValidationError for a bad value."""
    return AccessLogOptions(**flags.record("access_log"))
