# SPDX-License-Identifier: Apache-2.0
"""The server's end of a bound callable, which runs in another process behind a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError
from pytriton.runtime.executor.batch_tracker import BatchTracker
from pytriton.runtime.executor.worker import PROCESS_ENDED, describe_loss
from pytriton.runtime.transport.frames import DeviceNotes, MemoryFrame
from pytriton.runtime.transport.loop_channel import LoopChannel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from pytriton.runtime.executor.inference import Inference, InstanceEvents, ModelLabels
    from pytriton.runtime.transport.arena import MemoryTrimmer
    from pytriton.runtime.transport.channel import Channel


# What an instance sends beside answers: the first releases memory, the second has nothing to say
# here.
_OTHERS = (MemoryFrame, DeviceNotes)


class FramedInstance:
    """The common part of all instances behind a channel: batches go out as frames; see `Instance`.

    Subclasses set the attributes, and say how many slots are free.
    """

    _batches: BatchTracker
    _channel: LoopChannel

    @property
    def is_idle(self) -> bool:
        """See `Instance`."""
        return not self._batches.executing

    @property
    def has_requests(self) -> bool:
        """See `Instance`."""
        return self._batches.has_requests

    @property
    def executing_batches(self) -> Collection[int]:
        """See `Instance`."""
        return self._batches.executing.keys()

    def set_events(self, events: InstanceEvents) -> None:
        """Replace the receiver of events."""
        self._batches.events = events

    def call_depth_of(self, batch_id: int) -> int:
        """Returns how deep the calls are that a batch was made by."""
        return self._batches.call_depth_of(batch_id)

    def principal_of(self, batch_id: int) -> str:
        """Returns who has sent the requests of a batch; empty if they are of several."""
        return self._batches.principal_of(batch_id)

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """See `Instance`; raises ServerError if there is no memory for the tensors."""
        payload = self._channel.payload()
        frame = self._batches.begin(inferences, now_ns, payload)
        try:
            self._channel.send(frame, payload)
        except BaseException:
            self._batches.discard(frame.batch)
            raise

    def cancel(self, inference: Inference) -> None:
        """See `Instance`."""
        frame = self._batches.cancel_frame(inference)
        if frame is not None:
            self._channel.send(frame)

    def grant(self, inference: Inference, count: int) -> None:
        """See `Instance`."""
        frame = self._batches.credit_frame(inference, count)
        if frame is not None:
            self._channel.send(frame)


def gone_error(instance_name: str, reason: str) -> InternalError:
    """Returns the error of the open requests of an instance that was stopped or lost."""
    return InternalError(
        f"Failed to process the request(s) for model instance '{instance_name}', "
        f"message: the instance is gone, {reason}"
    )


class ChannelInstance(FramedInstance):
    """An instance whose channel is all that the server knows of it."""

    def __init__(
        self,
        name: str,
        labels: ModelLabels,
        channel: Channel,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        events: InstanceEvents,
        concurrency: int = 1,
        pid: int = 0,
    ) -> None:
        self.name = name
        self.pid = pid  # of its process on this machine, which other instances may share; or 0
        self._concurrency = concurrency
        self._batches = BatchTracker(self, labels, events, others=_OTHERS)
        self._channel = LoopChannel(
            channel,
            loop,
            memory,
            f"instance {name}",
            on_message=self._batches.handle,
            on_lost=self._on_lost,
        )
        self._channel.reads_ahead = concurrency > 1

    @property
    def free_slots(self) -> int:
        """See `Instance`."""
        return self._concurrency - len(self._batches.executing) if self._channel.is_open else 0

    def start(self) -> None:
        """See `Instance`."""
        self._channel.start()

    def stop(self) -> None:
        """See `Instance`."""
        self._end("the model was unloaded", is_lost=False)

    def __repr__(self) -> str:
        running = len(self._batches.running)
        return f"<ChannelInstance {self.name} running={running} open={self._channel.is_open}>"

    def _on_lost(self, error: Exception) -> None:
        reason = describe_loss(error)
        if reason == PROCESS_ENDED:
            # Sending may have failed before its last answers were read.
            self._channel.read_to_end()
        self._end(reason)

    def _end(self, reason: str, *, is_lost: bool = True) -> None:
        if not self._channel.is_open:
            return
        self._channel.close()
        self._batches.fail_all(gone_error(self.name, reason), is_lost=is_lost)
        self._batches.events.on_died(self, reason)
