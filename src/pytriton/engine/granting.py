# SPDX-License-Identifier: Apache-2.0
"""When a decoupled model hears that a client took its responses, and that it may send more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.transport.frames import RESPONSE_WINDOW, RESPONSE_WINDOW_BYTES

if TYPE_CHECKING:
    from pytriton.executor.base import Outcome
    from pytriton.executor.inference import Inference

# After so many responses a decoupled model hears that it may send as many more.
GRANT_RESPONSES = RESPONSE_WINDOW // 2
# The window has a size, too: larger responses are granted one by one, or it would never open again.
LARGE_RESPONSE_BYTES = RESPONSE_WINDOW_BYTES // RESPONSE_WINDOW


def is_grant_due(inference: Inference, outcome: Outcome) -> bool:
    """Whether to tell the model now, after this outcome was passed on."""
    if inference.taken_count >= GRANT_RESPONSES:
        return True
    response = outcome.response
    if response is None:
        return False
    size = sum(len(output.data) for output in response.outputs if output.data)
    return size >= LARGE_RESPONSE_BYTES
