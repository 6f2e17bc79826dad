# SPDX-License-Identifier: Apache-2.0
"""One compared thing: how it is asked for, and under which names the answers are kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np

from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import Observation, text
from tests.python_backend_differential.deadly import DEADLY_CASES, DEADLY_FACTS
from tests.python_backend_differential.servers import Server


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that both servers are asked. `ask` gives observations by name."""

    name: str
    ask: Callable[[Server], dict[str, Observation]]


def asked(case: Case, server: Server) -> dict[str, Observation]:
    """The observations of a case as they are stored: through JSON and back."""
    if server.is_real and case.name in DEADLY_CASES:
        return {}
    seen = {f"{case.name}: {name}": value for name, value in case.ask(server).items()}
    stored: dict[str, Observation] = json.loads(json.dumps(seen))
    return stored


def ask_facts(group: str, server: Server) -> dict[str, Observation]:
    """What the model `facts` tells of one group."""
    deadly = DEADLY_FACTS.get(group, ()) if server.is_real else ()
    inputs = {
        "GROUP": text(group),
        "LEFT_OUT": np.array(list(deadly), dtype=object),
        "NUMBERS": np.array([3, 1, 2], np.int32),
    }
    answer = clients.infer_over_http(server, "facts", inputs, outputs=["FACTS"])
    if "error" in answer:
        raise ConnectionError(f"{group}: {answer['error']}")
    return dict(json.loads(clients.normalised(answer["outputs"][0][3][0], server)))


def facts(group: str) -> Case:
    """One group of facts."""
    return Case(group, lambda server: ask_facts(group, server))
