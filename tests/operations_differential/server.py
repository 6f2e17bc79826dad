# SPDX-License-Identifier: Apache-2.0
"""A server as the cases see it: where it listens, what it was given and what it wrote."""

from __future__ import annotations

import dataclasses
import re

from tests import recorded_suite
from tests.operations_differential.forked_commands import Run

Observation = recorded_suite.Observation

_PATTERNS = (
    (re.compile(r"\b[IWEV]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w.]+:\d+\] "), "<prefix> "),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:]+Z [IWEV] \d+ [\w.]+:\d+\] "), "<prefix> "),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?"), "<time>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x0"),
)


@dataclasses.dataclass(frozen=True)
class Server(recorded_suite.Server):
    """A server with the ports of its setup.

    `folder` is its working folder and has the repository in `models`. It is kept until the last
    case of the setup is asked.
    """

    ports: dict[str, int]
    fork: Run | None = None  # runs commands of ours more quickly, if no server was started

    @property
    def places(self) -> dict[str, object]:
        return {**super().places, **self.ports}

    def normalised(self, text: str) -> str:
        """A text without what differs from run to run: folders, ports, times and addresses."""
        text = text.replace(str(self.repository), "<models>").replace(self.folder, "<folder>")
        for name, port in self.ports.items():
            text = re.sub(rf"\b{port}\b", f"<{name}>", text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text
