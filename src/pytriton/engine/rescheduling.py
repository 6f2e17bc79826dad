# SPDX-License-Identifier: Apache-2.0
"""Which requests of a batch are executed once more, because their model asked for it."""

from __future__ import annotations

from pytriton.errors import InternalError
from pytriton.executor.base import Outcome

_NOT_ITERATIVE = (
    "Failed to release request: Request is released with "
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a "
    "flag."
)


def split_rescheduled(
    outcomes: list[Outcome], *, is_iterative: bool
) -> tuple[list[Outcome], list[int]]:
    """The outcomes to pass on, and the positions of the requests to execute again."""
    others, again = [], []
    for outcome in outcomes:
        if not outcome.is_rescheduled:
            others.append(outcome)
        elif is_iterative:
            again.append(outcome.position)
        else:
            others.append(Outcome(outcome.position, None, InternalError(_NOT_ITERATIVE)))
    return others, again
