# SPDX-License-Identifier: Apache-2.0
"""A bound callable in another process, reached over a channel: the server's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.errors import InternalError
from pytriton.executor.batch_ledger import BatchLedger
from pytriton.executor.worker import describe_loss
from pytriton.transport.loop_channel import LoopChannel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Sequence

    from pytriton.executor.base import InstanceEvents
    from pytriton.executor.batch_ledger import ModelLabels
    from pytriton.executor.inference import Inference
    from pytriton.transport.channel import Channel, Received
    from pytriton.transport.memory_trimmer import MemoryTrimmer


class ChannelInstance:
    """Sends batches over a channel and turns what comes back into outcomes."""

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
        self._ledger = BatchLedger(self, labels, events)
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
        """How many more batches it takes now."""
        return self._concurrency - len(self._ledger.executing) if self._channel.is_open else 0

    @property
    def is_idle(self) -> bool:
        """Whether it runs nothing."""
        return not self._ledger.executing

    @property
    def executing_batches(self) -> Collection[int]:
        """The ids of the batches that take its slots."""
        return self._ledger.executing.keys()

    def hand_over(self, events: InstanceEvents) -> None:
        """Report to somebody else from now on."""
        self._ledger.events = events

    def inferences_of(self, batch_id: int) -> Sequence[Inference]:
        """The requests of a batch; none where it does not run any more."""
        return self._ledger.inferences_of(batch_id)

    def start(self) -> None:
        """Begin to report events."""
        self._channel.start()

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """Run requests together; ServerError where there is no room for their tensors."""
        payload = self._channel.payload()
        frame = self._ledger.begin(inferences, now_ns, payload)
        try:
            self._channel.send(frame, payload)
        except BaseException:
            self._ledger.give_up(frame.batch)
            raise

    def cancel(self, inference: Inference) -> None:
        """Tell the model that nobody waits for this request any more."""
        frame = self._ledger.cancel_frame(inference)
        if frame is not None:
            self._channel.send(frame)

    def grant(self, inference: Inference, count: int) -> None:
        """Let a decoupled model send so many more responses to this request."""
        frame = self._ledger.credit_frame(inference, count)
        if frame is not None:
            self._channel.send(frame)

    def stop(self) -> None:
        """End it; open requests are failed."""
        self._end("the model was unloaded")

    def __repr__(self) -> str:
        running = len(self._ledger.running)
        return f"<ChannelInstance {self.name} running={running} open={self._channel.is_open}>"

    def _on_message(self, received: Received) -> None:
        self._ledger.take(received)  # what is no answer only says something about memory

    def _end(self, reason: str) -> None:
        if not self._channel.is_open:
            return
        self._channel.close()
        error = InternalError(
            f"Failed to process the request(s) for model instance '{self.name}', "
            f"message: the instance is gone, {reason}"
        )
        self._ledger.fail_all(error)
        self._ledger.events.on_died(self, reason)
