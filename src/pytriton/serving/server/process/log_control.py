# SPDX-License-Identifier: Apache-2.0
"""The settings of the log while the server runs: clients ask for them and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.log_switches import LogFeed
from pytriton.serving.server.process.logs import use_log_switches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.base.log_switches import LogSwitches
    from pytriton.serving.server.options.server_options import LogOptions

# The fields of `LogSwitches`, by their names in the protocol.
_FIELDS = {
    "log_info": "info",
    "log_warning": "warning",
    "log_error": "error",
    "log_verbose_level": "verbose",
    "log_format": "format",
}


class LogControl:
    """The settings of a server. Changes apply to this process and to all that `feed` tells."""

    def __init__(self, options: LogOptions) -> None:
        self.feed = LogFeed(options.switches)
        self._file = options.file or ""

    def change(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings, which are valid; returns all of them, by their names in the protocol."""
        switches = changed(self.feed.switches, changes)
        if switches != self.feed.switches:
            use_log_switches(switches)
            self.feed.change(switches)
        return {
            "log_file": self._file,
            **{name: getattr(switches, field) for name, field in _FIELDS.items()},
        }


def changed(switches: LogSwitches, changes: Mapping[str, Any]) -> LogSwitches:
    """Returns the settings after changes, which are given by their names in the protocol."""
    return msgspec.structs.replace(
        switches, **{field: changes[name] for name, field in _FIELDS.items() if name in changes}
    )
