# SPDX-License-Identifier: Apache-2.0
"""Where the lines for the server's log go."""

from __future__ import annotations

from typing import Protocol


class BackendLog(Protocol):
    """Writes lines to the log."""

    def write_info(self, text: str) -> None:
        """Write a line."""

    def write_warning(self, text: str) -> None:
        """Write a warning."""

    def write_verbose(self, text: str) -> None:
        """Write a line that appears only while the log is verbose."""
