# SPDX-License-Identifier: Apache-2.0
"""Where ours deliberately answers otherwise than Triton 2.51, and why. `ours.json` has how."""

from __future__ import annotations

_NAMES_BY_REASON = {
    "an output that other steps also take can be asked for alone": """
        tensor between steps is the only output
    """,
    "later releases have max_inflight_requests": """
        config
        config of a nested ensemble
        config of an ensemble with a decoupled step
    """,
    "a failed request is one failure, also of the ensembles around it": """
        statistics of a failing step
    """,
    "the answer tells the sequence, also where its tensor is empty": """
        stream of words before a step, in order: 1 long nothing
    """,
    "the message says what came, or why": """
        stream: unknown input
    """,
    "an error has the status of an error": """
        decoupled ensembles and generate
    """,
    "the index says why an ensemble is not available": """
        life: step with a smaller batch
        life: refused ensemble leaves its steps
    """,
    "an ensemble goes on as it was if its new configuration is refused, as other models do": """
        life: change that is refused
    """,
}

KNOWN_DIFFERENCES = {
    name.strip(): reason
    for reason, names in _NAMES_BY_REASON.items()
    for name in names.strip().splitlines()
}
