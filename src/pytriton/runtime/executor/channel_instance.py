# SPDX-License-Identifier: Apache-2.0
"""The server's end of a bound callable, which runs in another process behind a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError
from pytriton.runtime.executor.batch_tracker import BatchTracker
from pytriton.runtime.executor.worker import describe_loss
from pytriton.runtime.transport.loop_channel import LoopChannel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Sequence

    from pytriton.runtime.executor.base import InstanceEvents
    from pytriton.runtime.executor.inference import Inference
    from pytriton.runtime.executor.model_labels import ModelLabels
    from pytriton.runtime.transport.channel import Channel, Received
    from pytriton.runtime.transport.memory_trimmer import MemoryTrimmer


class ChannelInstance:
    """Sends batches over a channel and reports the answers as outcomes."""

    def __init__(
        self,
        name: str,
        labels: ModelLabels,
        channel: Channel,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        events: InstanceEvents,
        concurrency: int = 1,
    ) -> None:
        self.name = name
        self._concurrency = concurrency
        self._batches = BatchTracker(self, labels, events)
        self._channel = LoopChannel(
            channel,
            loop,
            memory,
            f"instance {name}",
            on_message=self._on_message,
            on_lost=lambda error: self._end(describe_loss(error)),
        )
        self._channel.reads_ahead = concurrency > 1

    @property
    def free_slots(self) -> int:
        """The number of batches that the instance accepts now."""
        return self._concurrency - len(self._batches.executing) if self._channel.is_open else 0

    @property
    def is_idle(self) -> bool:
        """Whether no batch is executing."""
        return not self._batches.executing

    @property
    def has_requests(self) -> bool:
        """Whether it has requests that are not answered to their end."""
        return self._batches.has_requests

    @property
    def executing_batches(self) -> Collection[int]:
        """The ids of the batches that occupy slots."""
        return self._batches.executing.keys()

    def set_events(self, events: InstanceEvents) -> None:
        """Replace the receiver of events."""
        self._batches.events = events

    def inferences_of(self, batch_id: int) -> Sequence[Inference]:
        """Returns the requests of a batch; none if it is not running any more."""
        return self._batches.inferences_of(batch_id)

    def start(self) -> None:
        """Begin to report events."""
        self._channel.start()

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """Run requests as one batch; raises ServerError if there is no memory for their tensors."""
        payload = self._channel.payload()
        frame = self._batches.begin(inferences, now_ns, payload)
        try:
            self._channel.send(frame, payload)
        except BaseException:
            self._batches.discard(frame.batch)
            raise

    def cancel(self, inference: Inference) -> None:
        """Tell the model that this request was cancelled."""
        frame = self._batches.cancel_frame(inference)
        if frame is not None:
            self._channel.send(frame)

    def grant(self, inference: Inference, count: int) -> None:
        """Allow a decoupled model to send `count` more responses to this request."""
        frame = self._batches.credit_frame(inference, count)
        if frame is not None:
            self._channel.send(frame)

    def stop(self) -> None:
        """Stop the instance and fail its open requests."""
        self._end("the model was unloaded", is_lost=False)

    def __repr__(self) -> str:
        running = len(self._batches.running)
        return f"<ChannelInstance {self.name} running={running} open={self._channel.is_open}>"

    def _on_message(self, received: Received) -> None:
        self._batches.handle(received)  # other messages only release memory

    def _end(self, reason: str, *, is_lost: bool = True) -> None:
        if not self._channel.is_open:
            return
        self._channel.close()
        error = InternalError(
            f"Failed to process the request(s) for model instance '{self.name}', "
            f"message: the instance is gone, {reason}"
        )
        self._batches.fail_all(error, is_lost=is_lost)
        self._batches.events.on_died(self, reason)
