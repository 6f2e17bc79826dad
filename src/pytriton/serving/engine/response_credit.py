# SPDX-License-Identifier: Apache-2.0
"""Flow control of decoupled models: grants credit for more responses as clients take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.runtime.transport.credit import is_grant_due

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.executor.base import Outcome
    from pytriton.runtime.executor.inference import Inference


class ResponseCredit:
    """Grants instances credit for the responses that the sinks of their requests have taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def pause(self, inference: Inference) -> None:
        """Grant no credit until `resume`: the sink is behind with its responses."""
        inference.is_paused = True

    def resume(self, inference: Inference) -> None:
        """Grant credit again: the sink has caught up."""
        inference.is_paused = False
        self._grant(inference)

    def on_taken(self, inference: Inference, outcome: Outcome) -> None:
        """Count a response, not the last one, that the sink has taken."""
        inference.taken_count += 1
        if inference.response_count == 1:
            # Grant credit for the second response two iterations of the event loop later, after the
            # first was written; granting it at once delayed the first by 1 to 5 ms.
            self._loop.call_soon(self._loop.call_soon, self._grant, inference)
        elif is_grant_due(inference.taken_count, _size_of(outcome)):
            self._grant(inference)

    def _grant(self, inference: Inference) -> None:
        count = inference.taken_count
        if count and not inference.is_paused and inference.instance is not None:
            inference.instance.grant(inference, count)
            inference.taken_count = 0


def _size_of(outcome: Outcome) -> int:
    response = outcome.response
    outputs = () if response is None else response.outputs
    return sum([len(output.data) for output in outputs if output.data])
