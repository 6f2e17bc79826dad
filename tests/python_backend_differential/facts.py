# SPDX-License-Identifier: Apache-2.0
"""Cases that ask the model `facts`."""

from __future__ import annotations

import json

import numpy as np

from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import text
from tests.python_backend_differential.deadly import DEADLY_FACTS
from tests.recorded_suite import Case, Observation, Server


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
