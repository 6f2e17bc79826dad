# SPDX-License-Identifier: Apache-2.0
"""Steps that fail or give wrong tensors."""

from __future__ import annotations

from tests.ensemble_differential import asking
from tests.python_backend_differential import clients
from tests.recorded_suite import Case, Observation, Server

WORDS = (
    "1",
    "raise",
    "error",
    "error:NOT_FOUND",
    "error:UNAVAILABLE",
    "error:INVALID_ARG",
    "error:CANCELLED",
    "missing",
    "float",
    "shape",
    "long",
    "nothing",
    "more",
)


def step_gives(word: str) -> Case:
    """What a step's answer becomes as the ensemble's, before another step, and nested."""

    def ask(server: Server) -> Observation:
        inputs = {"WORDS": clients.text(word)}
        return {
            "last step": asking.by_both(server, "words_only", inputs),
            "first step": asking.by_both(server, "words_then_add", inputs, request_id="mine"),
            "nested": asking.by_http(server, "words_nested", inputs),
        }

    return Case(f"step gives {word}", ask)


def failures_counted(server: Server) -> Observation:
    before = asking.counts(server, "words_nested", "words_then_add", "scripted")
    asking.by_http(server, "words_nested", {"WORDS": clients.text("raise")})
    after = asking.counts(server, "words_nested", "words_then_add", "scripted")
    return asking.gained(before, after)


CASES = (
    *(step_gives(word) for word in WORDS),
    Case("statistics of a failing step", failures_counted),
)
