# SPDX-License-Identifier: Apache-2.0
"""When a decoupled model hears that a client took its responses, and that it may send more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.transport.frames import RESPONSE_WINDOW, RESPONSE_WINDOW_BYTES

if TYPE_CHECKING:
    import asyncio

    from pytriton.executor.base import Outcome
    from pytriton.executor.inference import Inference

# After this many responses a decoupled model hears that it may send as many more.
GRANT_RESPONSES = RESPONSE_WINDOW // 2
# The window has a size, too: larger responses are granted one by one, or it would never open again.
LARGE_RESPONSE_BYTES = RESPONSE_WINDOW_BYTES // RESPONSE_WINDOW


class ResponseCredit:
    """Grants instances credit for the responses that the sinks of their requests took."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def pause(self, inference: Inference) -> None:
        """The sink takes no more responses for now, so its model must wait."""
        inference.is_paused = True

    def resume(self, inference: Inference) -> None:
        """The sink takes responses again."""
        inference.is_paused = False
        self._grant(inference)

    def on_taken(self, inference: Inference, outcome: Outcome) -> None:
        """The sink took a response that is not the last one."""
        inference.taken_count += 1
        if inference.response_count == 1:
            # Credit for the second response comes two rounds of the event loop later, after the
            # first was written; granting it at once delayed the first by 1 to 5 ms.
            self._loop.call_soon(self._loop.call_soon, self._grant, inference)
        elif inference.taken_count >= GRANT_RESPONSES or _is_large(outcome):
            self._grant(inference)

    def _grant(self, inference: Inference) -> None:
        count = inference.taken_count
        if count and not inference.is_paused and inference.instance is not None:
            inference.instance.grant(inference, count)
            inference.taken_count = 0


def _is_large(outcome: Outcome) -> bool:
    response = outcome.response
    if response is None:
        return False
    size = sum(len(output.data) for output in response.outputs if output.data)
    return size >= LARGE_RESPONSE_BYTES
