# SPDX-License-Identifier: Apache-2.0
"""One compared scenario: how it is asked, and under which name the answer is kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from tests.python_backend_differential.clients import Observation
from tests.python_backend_differential.servers import Server


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that both servers are asked."""

    name: str
    ask: Callable[[Server], Observation]


def asked(case: Case, server: Server) -> Observation:
    """The answer as it is stored: through JSON and back."""
    return json.loads(json.dumps(case.ask(server)))
