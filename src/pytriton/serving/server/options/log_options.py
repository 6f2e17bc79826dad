# SPDX-License-Identifier: Apache-2.0
"""The settings of the log."""

from __future__ import annotations

import msgspec

from pytriton.base.log_switches import LogSwitches
from pytriton.serving.server.options.flags import Flags


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the server logs, and where."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    file: str | None = None

    @property
    def switches(self) -> LogSwitches:
        """Those settings that clients may change."""
        return LogSwitches(self.info, self.warning, self.error, self.verbose, self.format)


def read_log_options(flags: Flags) -> LogOptions:
    """Read the settings of the log; raises PyTritonValidationError for a bad value."""
    return LogOptions(**flags.record("log"))
