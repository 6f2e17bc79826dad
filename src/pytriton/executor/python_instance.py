# SPDX-License-Identifier: Apache-2.0
"""A model.py in a worker process of its own: the server's end of it, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec import structs

from pytriton.errors import InternalError
from pytriton.executor.call_port import CallPort
from pytriton.executor.channel_instance import PROCESS_ENDED, ChannelInstance, ModelLabels
from pytriton.executor.fork_listener import ForkListener
from pytriton.executor.memory_keeper import MemoryKeeper
from pytriton.executor.worker import ForkingProcessEndedError
from pytriton.transport.memory_channel import MemoryChannel
from pytriton.transport.worker_frames import (
    CheckReady,
    Finalize,
    Initialize,
    Initialized,
    ReadyReport,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytriton.executor.base import Instance, InstanceEvents, Outcome, RunningBatch
    from pytriton.executor.inference import Inference
    from pytriton.executor.launcher import Worker, WorkerLauncher, WorkerSpec
    from pytriton.executor.worker_services import WorkerServices
    from pytriton.transport.channel import Received
    from pytriton.transport.frames import BatchFailure, BatchResult, Responses

logger = logging.getLogger(__name__)

FINALIZE_GRACE_S = 30.0  # that `finalize` may take
READY_TIMEOUT_S = 5.0  # that a check of readiness waits for `is_ready`
ASYNC_CONCURRENCY = 256  # batches that overlap where `execute` is a coroutine function
# How long requests wait for the cause to be known after the connection has ended.
_CAUSE_TIMEOUT_S = 0.05


class PythonInstance(ChannelInstance):
    """An instance whose worker runs a `TritonPythonModel`.

    It is free for the next batch when `execute` has returned, however many responses are still to
    come. `ended` is done when the process is gone.
    """

    def __init__(
        self,
        worker: Worker,
        labels: ModelLabels,
        keeper: MemoryKeeper,
        loop: asyncio.AbstractEventLoop,
        events: InstanceEvents,
        services: WorkerServices,
        grace_s: float = FINALIZE_GRACE_S,
    ) -> None:
        channel = MemoryChannel(worker.channel, keeper.arena)
        super().__init__(worker.instance_name, labels, channel, keeper, loop, events)
        self.has_ready_check = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self._worker = worker
        self._services = services
        self._grace_s = grace_s
        self._port = CallPort(channel, keeper, services, self._send)
        self._fork_listener = ForkListener(worker.fork_socket, keeper, loop, services)
        self._executing: dict[int, RunningBatch] = {}  # whose `execute` has not returned
        self._initialized: asyncio.Future[Initialized] = loop.create_future()
        self._has_started = False
        self._is_stopping = False
        self._is_lost = False
        self._death: str | None = None  # heard of before its owner wanted to know
        self._kill_timer: asyncio.TimerHandle | None = None
        self._ready_call: asyncio.Future[bool] | None = None
        self._ready_number = 0

    @classmethod
    async def launch(
        cls,
        launcher: WorkerLauncher,
        spec: WorkerSpec,
        initialize: Initialize,
        labels: ModelLabels,
        keeper: MemoryKeeper,
        loop: asyncio.AbstractEventLoop,
        events: InstanceEvents,
        services: WorkerServices,
        *,
        grace_s: float = FINALIZE_GRACE_S,
    ) -> PythonInstance:
        """Start a worker and initialize its model; cancel it to give up waiting.

        Raises:
            InternalError: The model could not be initialized, or the process ended.
        """
        worker = await launcher.launch(spec)
        instance = cls(worker, labels, keeper, loop, events, services, grace_s)
        await instance.initialize(initialize)
        return instance

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._worker.pid

    @property
    def is_to_blame(self) -> bool:
        """Whether its end, if it ended, says something about its model."""
        return self._worker.is_to_blame

    @property
    def concurrency(self) -> int:
        """How many batches it takes at a time."""
        return self._concurrency

    @property
    def free_slots(self) -> int:
        """How many more batches it takes now."""
        if self._is_stopping or self._is_lost:
            return 0
        return self._concurrency - len(self._executing)

    @property
    def executing_batches(self) -> Collection[int]:
        """The batches whose `execute` has not returned."""
        return self._executing.keys()

    @property
    def is_idle(self) -> bool:
        """Whether `execute` runs for nothing."""
        return not self._executing

    # Life

    async def initialize(self, frame: Initialize) -> Initialized:
        """Have the model made ready, and read from now on what the worker says."""
        self._reads_ahead = frame.is_decoupled
        super().start()
        self._fork_listener.open()
        self._worker.exited.add_done_callback(self._on_exit)
        self._send(frame, None)
        try:
            report = await self._initialized
        except BaseException:  # it died, or the caller has waited long enough
            self._abandon()
            raise
        if report.error:
            self._abandon()
            raise InternalError(report.error)
        self.has_ready_check = report.has_ready_check
        if report.is_async:
            self._concurrency = ASYNC_CONCURRENCY
            self._reads_ahead = True
        return report

    def start(self) -> None:
        """Begin to report events."""
        self._has_started = True
        if self._death is not None:
            self._loop.call_soon(self._events.on_died, self, self._death)

    def stop(self) -> None:
        """Fail open requests, and let the model finalize; `ended` tells when it has."""
        if self._is_stopping or self._is_lost:
            return
        self._is_stopping = True
        self._send(Finalize(), None)
        self._kill_timer = self._loop.call_later(self._grace_s, self._on_grace_over)
        reason = "the model was unloaded"
        self._executing.clear()
        self._fail_all(self._make_error(reason))
        self._report_death(reason)

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """See `ChannelInstance.execute`."""
        super().execute(inferences, now_ns)
        batch_id = inferences[0].batch_id
        self._executing[batch_id] = self._running[batch_id]

    def inferences_of(self, batch_id: int) -> Sequence[Inference]:
        """The requests of a batch that `execute` works on or that has an answer to come."""
        batch = self._executing.get(batch_id) or self._running.get(batch_id)
        return batch.inferences if batch is not None else ()

    async def check_ready(self) -> bool:
        """Whether the worker lives and its model, where it has a word to say, is ready.

        One call of `is_ready` answers all who ask while it runs.
        """
        if self._is_stopping or self._is_lost:
            return False
        if not self.has_ready_check:
            return True
        if self._ready_call is None:
            self._ready_call = self._loop.create_future()
            self._ready_number += 1
            self._send(CheckReady(self._ready_number), None)
        call = self._ready_call
        await asyncio.wait([call], timeout=READY_TIMEOUT_S)
        return call.done() and call.result()

    def __repr__(self) -> str:
        return (
            f"<PythonInstance {self.name} pid={self.pid} executing={len(self._executing)} "
            f"running={len(self._running)} free={self.free_slots}>"
        )

    # What the worker says

    def _on_batch_result(self, received: Received, frame: BatchResult) -> None:
        self._executing.pop(frame.batch, None)
        if frame.batch in self._running:  # not failed when the instance was stopped
            super()._on_batch_result(received, frame)

    def _on_responses(self, received: Received, frame: Responses) -> Collection[int]:
        returned = self._executing.pop(frame.returned_batch, None)
        reported = super()._on_responses(received, frame)
        if returned is not None and returned.id not in reported:
            times_ns = (frame.started_ns, frame.finished_ns)
            self._events.on_outcomes(self, returned, [], times_ns)
        return reported

    def _on_batch_failure(self, frame: BatchFailure) -> None:
        returned = self._executing.pop(frame.batch, None)
        if frame.batch in self._running:
            super()._on_batch_failure(frame)
        elif returned is not None:  # each of its requests had its answer before
            times_ns = (frame.started_ns, frame.finished_ns)
            self._events.on_outcomes(self, returned, [], times_ns)

    def _on_other(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Initialized):
            if not self._initialized.done():
                self._initialized.set_result(frame)
        elif isinstance(frame, ReadyReport):
            if frame.call == self._ready_number:
                self._answer_ready(is_ready=frame.is_ready)
        else:
            self._port.take(received)

    def _answer_ready(self, *, is_ready: bool) -> None:
        call, self._ready_call = self._ready_call, None
        if call is not None:
            call.set_result(is_ready)

    # How it ends

    def _abandon(self) -> None:
        self._is_stopping = True
        self._worker.kill()
        self._end("its model could not be initialized")

    def _on_exit(self, exited: asyncio.Future[str]) -> None:
        if self._is_open and not self._is_lost:
            self._is_lost = True
            self._read_rest()
        self._end(exited.result())
        if not self.ended.done():
            self.ended.set_result(None)

    def _read_rest(self) -> None:
        """Take the answers that it gave before it ended."""
        # Linux says once that a connection was reset before it hands out what came until then.
        if self._read_to_end():
            self._read_to_end()

    def _read_to_end(self) -> bool:
        try:
            while self._is_open and (received := self._channel.receive()) is not None:
                self._on_message(received)
        except EOFError:
            return True
        except Exception:
            logger.exception("instance %s: its last message could not be read", self.name)
        return False

    def _on_lost(self, reason: str) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        if reason == PROCESS_ENDED:
            self._read_rest()
        if self._is_stopping:
            return  # it may take its time until the grace is over
        self._loop.call_later(_CAUSE_TIMEOUT_S, self._on_cause_unknown, reason)

    def _on_cause_unknown(self, reason: str) -> None:
        if self._is_open:
            self._worker.kill()
            self._end(reason if reason != PROCESS_ENDED else "it closed its connection")

    def _on_grace_over(self) -> None:
        logger.warning(
            "instance %s did not finalize within %g s and is killed", self.name, self._grace_s
        )
        self._worker.kill()

    def _end(self, reason: str) -> None:
        if not self._is_open:
            return
        self._is_lost = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._close()
        self._fork_listener.close()
        self._port.close()
        self._services.close()
        self._answer_ready(is_ready=False)
        self._executing.clear()
        kind = InternalError if self.is_to_blame else ForkingProcessEndedError
        error = kind(f"Stub process '{self.name}' is not healthy. {_sentence(reason)}")
        if not self._initialized.done():
            self._initialized.set_exception(error)
        self._fail_all(error)
        if not self._is_stopping:
            self._report_death(reason)

    def _report_death(self, reason: str) -> None:
        if self._has_started:
            self._events.on_died(self, reason)
        else:
            self._death = reason


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


class _NoOwner:
    """Takes the events of an instance that never runs a batch."""

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        raise AssertionError(f"{instance.name} answered a batch that it was not given")

    def on_died(self, instance: Instance, reason: str) -> None:
        logger.debug("%s ended: %s", instance.name, reason)


async def complete_config(
    launcher: WorkerLauncher,
    spec: WorkerSpec,
    initialize: Initialize,
    loop: asyncio.AbstractEventLoop,
    services: WorkerServices,
) -> str:
    """Have a worker of its own call `auto_complete_config`; the configuration as JSON text.

    Raises:
        InternalError: It raised, or the process ended.
    """
    labels = ModelLabels("", "", (), batching=False)
    worker = await launcher.launch(spec)
    instance = PythonInstance(worker, labels, MemoryKeeper(loop), loop, _NoOwner(), services)
    report = await instance.initialize(structs.replace(initialize, completes_config=True))
    instance.stop()
    return report.config
