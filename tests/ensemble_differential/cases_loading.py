# SPDX-License-Identifier: Apache-2.0
"""Ensembles that are refused, and with which words; and a few that look wrong and are not."""

from __future__ import annotations

import re

from tests.ensemble_differential import asking
from tests.ensemble_differential.refused_ensembles import ACCEPTED, BY_THEMSELVES, REFUSED
from tests.recorded_suite import Case, Observation, Server

# Ours goes on with the reason, and shows it in the index of the repository.
REASON_AFTER = "failed to poll from model repository"


def loaded(name: str) -> Case:
    def ask(server: Server) -> Observation:
        position = asking.length_of_log(server)
        status, answer = asking.load(server, name)
        if "error" in answer:
            answer["error"] = re.sub(f"({REASON_AFTER}): .*", r"\1", answer["error"])
        return {
            "answer": [status, answer],
            "ready": asking.call(server, f"/models/{name}/ready"),
            "log": asking.polls_failed(server, position) if name in BY_THEMSELVES else [],
        }

    return Case(f"load {name}", ask)


# The real server loads both ensembles of a circle at once, and knows them the second time.
CASES = tuple(
    loaded(name) for name in (*REFUSED, *ACCEPTED, "without_version") if name != "circle_two"
)
