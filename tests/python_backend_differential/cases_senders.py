# SPDX-License-Identifier: Apache-2.0
"""Response senders: every call in every state, before execute returned and after, in both modes."""

from __future__ import annotations

import json

from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import text
from tests.recorded_suite import Case, Observation, Server

# steps before the return > what is returned > steps of a thread after it
COUPLED = (
    "last > none >",
    "last > none entry >",
    "keyword > none >",
    "send, final > none >",
    "send, final none > none >",
    "send, send, final > none >",
    "last, send > none >",
    "last, last > none >",
    "last, final > none >",
    "final, last > none >",
    "nothing, last > none >",
    "flag 2, last > none >",
    "flag 3, last > none >",
    "flag text, last > none >",
    "text, last > none >",
    "tensor, last > none >",
    "empty > none >",
    "unknown output > none >",
    "error last > none >",
    "error, final > none >",
    "last > response >",
    "last > raise >",
    "send > raise >",
    "> raise > last",
    "> response > last",
    "> none > last",
    "> none entry > last",
    "> none > send, final",
    "> none > final, last",
    "> none > error last",
    "send > none > final",
    "send > none > send, final",
    "send > none > last, final",
    "> response > final",
    "last > none > final, nothing",
)
DECOUPLED = (
    *COUPLED,
    "final > none >",
    "send, send, send > none > final",
    "> none > send, send, last",
    "> none > final",
    "error, send, final > none >",
    "send, error, send, last > none >",
    "send > none > error, last",
    "send, last > raise >",
    "send > response >",
)
# Here execute fails or returns a response while its request stays open: what it sent before is
# compared, and nothing is left open.


def coupled(script: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        answer = clients.infer_over_http(server, "senders", {"SCRIPT": text(script)})
        recalled = clients.infer_over_http(server, "senders", {"SCRIPT": text("recall")})
        return {"answer": answer, "outcomes": json.loads(recalled["outputs"][0][3][0])}

    return Case(f"sender {script}", ask)


def decoupled(script: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        answers = clients.infer_over_stream(server, "senders_decoupled", {"SCRIPT": text(script)})
        recalled = clients.infer_over_stream(
            server, "senders_decoupled", {"SCRIPT": text("recall")}
        )
        return {"answers": answers, "outcomes": recalled}

    return Case(f"decoupled sender {script}", ask)


CASES = (*(coupled(script) for script in COUPLED), *(decoupled(script) for script in DECOUPLED))
