# SPDX-License-Identifier: Apache-2.0
"""The server's end of a model.py, which runs in its own worker process; owns its lifecycle."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec import structs

from pytriton.base.device_copies import CopyReason
from pytriton.base.errors import (
    ErrorCode,
    InternalError,
    ServerError,
    UnavailableError,
    error_from_code,
)
from pytriton.runtime.executor import device_regions
from pytriton.runtime.executor.batch_tracker import BatchTracker
from pytriton.runtime.executor.call_server import CallServer, ForkListener
from pytriton.runtime.executor.channel_instance import FramedInstance, gone_error
from pytriton.runtime.executor.device_blocks import DeviceLedger
from pytriton.runtime.executor.inference import ModelLabels
from pytriton.runtime.executor.worker import (
    PROCESS_ENDED,
    ForkingProcessEndedError,
    InstanceUnavailableError,
    describe_loss,
)
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import (
    CheckReady,
    DeviceNotes,
    DropRegions,
    Finalize,
    Finalized,
    Initialize,
    Initialized,
    LogChange,
    ReadyReport,
    ReleaseExports,
)
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.peer_account import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytriton.base.log_switches import LogFeed, LogSwitches
    from pytriton.base.messages import ResponseBurst
    from pytriton.runtime.executor.call_server import WorkerServices
    from pytriton.runtime.executor.inference import Instance, InstanceEvents, Outcome, RunningBatch
    from pytriton.runtime.executor.worker import Launcher, WorkerHandle, WorkerSpec
    from pytriton.runtime.transport.channel import Received

logger = logging.getLogger(__name__)

FINALIZE_GRACE_S = 30.0  # time for `finalize` before the process is killed
READY_TIMEOUT_S = 5.0  # how long a readiness check waits for `is_ready`
ASYNC_CONCURRENCY = 256  # concurrent batches if `execute` is a coroutine function


class PythonInstance(FramedInstance):
    """An instance whose worker runs a `TritonPythonModel`.

    It accepts the next batch when `execute` has returned, even if responses are still to come.
    `ended` is done when the process has ended.
    """

    def __init__(
        self,
        worker: WorkerHandle,
        labels: ModelLabels,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        events: InstanceEvents,
        services: WorkerServices,
        grace_s: float = FINALIZE_GRACE_S,
    ) -> None:
        self.name = worker.instance_name
        self.node, self.pid = worker.node, worker.pid
        self.concurrency = 1
        self.has_ready_check = False
        self._takes_device_memory = False
        self.device_ledger = DeviceLedger(
            self, lambda: self._batches.events.costs, loop, self._send_releases
        )
        self.ended: asyncio.Future[None] = loop.create_future()
        self._worker = worker
        self._loop = loop
        self._services = services
        self._grace_s = grace_s
        self._batches = BatchTracker(self, labels, events, reports_return=True)
        self._channel = LoopChannel(
            worker.open_channel(memory.arena),
            loop,
            memory,
            f"instance {self.name}",
            on_message=self._on_message,
            on_lost=self._on_lost,
        )
        origin = f"{self.name}@{worker.node}" if worker.node else ""
        self._call_server = CallServer(self._channel, services, origin, self.device_ledger)
        self._group = worker.open_group(memory, loop, services, self._on_rank_lost)
        self._fork_listener: ForkListener | None = None
        if worker.fork_socket is not None:
            self._fork_listener = ForkListener(
                worker.fork_socket, memory, loop, services, is_enclosed=worker.is_enclosed
            )
        self._initialized: asyncio.Future[Initialized] = loop.create_future()
        self._has_started = False
        self._is_stopping = False
        self._is_lost = False
        self._death: str | None = None  # why it ended, if that was before `start`
        self._kill_timer: asyncio.TimerHandle | None = None
        self._ready_call: asyncio.Future[bool] | None = None
        self._ready_number = 0

    @classmethod
    async def launch(
        cls,
        launcher: Launcher,
        spec: WorkerSpec,
        initialize: Initialize,
        labels: ModelLabels,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        events: InstanceEvents,
        services: WorkerServices,
        *,
        grace_s: float = FINALIZE_GRACE_S,
        log: LogFeed | None = None,
    ) -> PythonInstance:
        """Start a worker and initialize its model. Cancelling the task stops the wait.

        Raises:
            ServerError: The model could not be initialized, or the process ended.
        """
        worker = await launcher.launch(spec)
        try:
            instance = cls(worker, labels, memory, loop, events, services, grace_s)
        except BaseException:
            worker.kill()
            raise
        if log is not None:
            instance.follow(log)
            initialize.log = log.switches  # they may have changed while the worker was started
        await instance.initialize(initialize)
        return instance

    @property
    def is_to_blame(self) -> bool:
        """Whether the worker itself is the cause of its end, rather than another process."""
        return self._worker.is_to_blame

    @property
    def takes_device_memory(self) -> bool:
        """See `DeviceInstance`."""
        return not self.node and self._takes_device_memory

    def drop_regions(self, numbers: Collection[int]) -> None:
        """See `DeviceInstance`."""
        if self._channel.is_open and not self._is_lost:
            self._channel.send(DropRegions(list(numbers)))

    def _send_releases(self, frame: ReleaseExports) -> None:
        if self._channel.is_open and not self._is_lost:
            self._channel.send(frame)

    def _set_device_ledger(self, report: Initialized) -> None:
        ledger = self.device_ledger
        ledger.keeps_inputs, ledger.gpu = report.keeps_device_inputs, report.gpu
        if self.node:
            ledger.refusal = CopyReason.OTHER_MACHINE
        elif self._worker.is_enclosed:
            ledger.refusal = CopyReason.SANDBOX
        elif report.takes_device_memory:
            ledger.refusal = ""
            if report.keeps_device_inputs:
                device_regions.add_keeping(self)

    @property
    def free_slots(self) -> int:
        """The number of batches that the instance accepts now."""
        if self._is_stopping or self._is_lost:
            return 0
        return self.concurrency - len(self._batches.executing)

    # Lifecycle

    async def initialize(self, frame: Initialize) -> Initialized:
        """Initialize the model in the worker, and start to read the worker's messages."""
        self._channel.reads_ahead = frame.is_decoupled
        self._channel.start()
        if self._fork_listener is not None:
            self._fork_listener.open()
        self._worker.exited.add_done_callback(self._on_exit)
        group = self._group
        try:
            self._channel.send(frame if group is None else group.begin(frame))
            report = await (self._initialized if group is None else group.gather(self._initialized))
        except BaseException:  # the process ended, the caller was cancelled, or nothing was sent
            self._abandon()
            raise
        if report.is_failure:
            self._abandon()
            code = report.error_code if report.error_code >= 0 else ErrorCode.INTERNAL
            raise error_from_code(code, report.error)
        self.has_ready_check = report.has_ready_check
        self._takes_device_memory = report.takes_device_memory
        self._set_device_ledger(report)
        if report.is_async:
            self.concurrency = ASYNC_CONCURRENCY
            self._channel.reads_ahead = True
        if report.concurrency:
            self.concurrency = report.concurrency
            self._channel.reads_ahead = report.concurrency > 1
            self._batches.expect_no_return()
        return report

    def follow(self, log: LogFeed) -> None:
        """Tell the worker about changes of the log's settings until its process has ended."""
        log.add(self._on_log_change)
        self.ended.add_done_callback(lambda _: log.remove(self._on_log_change))

    def _on_log_change(self, switches: LogSwitches) -> None:
        if self._channel.is_open and not self._is_lost:
            self._tell(LogChange(switches))

    def _tell(self, frame: Finalize | LogChange) -> None:
        self._channel.send(frame)
        if self._group is not None:
            self._group.tell(frame)

    def start(self) -> None:
        """Begin to report events."""
        self._has_started = True
        if self._death is not None:
            self._loop.call_soon(self._batches.events.on_died, self, self._death)

    def stop(self) -> None:
        """Fail open requests and finalize the model; `ended` is done when the process has ended."""
        if self._is_stopping or self._is_lost:
            return
        self._is_stopping = True
        # Nobody takes their answers any more: a model must not wait for that in `finalize`.
        for frame in self._batches.open_cancel_frames():
            self._channel.send(frame)
        self._tell(Finalize())
        self._kill_timer = self._loop.call_later(self._grace_s, self._on_grace_over)
        reason = "the model was unloaded"
        self._batches.fail_all(gone_error(self.name, reason))
        self._report_death(reason)

    async def check_ready(self) -> bool:
        """Returns whether the worker is alive and its model, if it has `is_ready`, is ready.

        Concurrent checks share one call of `is_ready`.
        """
        if self._is_stopping or self._is_lost:
            return False
        if not self.has_ready_check:
            return True
        if self._ready_call is None:
            self._ready_call = self._loop.create_future()
            self._ready_number += 1
            self._channel.send(CheckReady(self._ready_number))
        call = self._ready_call
        await asyncio.wait([call], timeout=READY_TIMEOUT_S)
        return call.done() and call.result()

    def __repr__(self) -> str:
        return (
            f"<PythonInstance {self.name} pid={self.pid} executing={len(self._batches.executing)} "
            f"running={len(self._batches.running)} free={self.free_slots}>"
        )

    # Messages of the worker

    def _on_message(self, received: Received) -> None:
        if self._batches.handle(received):
            return
        frame = received.frame
        if isinstance(frame, Initialized):
            if frame.is_failure and self.node:
                frame.error = f"On node '{self.node}': {frame.error}"
            if not self._initialized.done():
                self._initialized.set_result(frame)
        elif isinstance(frame, ReadyReport):
            if frame.call == self._ready_number:
                self._answer_ready(is_ready=frame.is_ready)
        elif isinstance(frame, DeviceNotes):
            self.device_ledger.on_notes(frame)
        elif isinstance(frame, Finalized):
            if self._group is not None:
                self._group.on_first_finalized(self._worker.kill)
        else:
            self._call_server.handle(received)

    def _answer_ready(self, *, is_ready: bool) -> None:
        call, self._ready_call = self._ready_call, None
        if call is not None:
            call.set_result(is_ready)

    # End

    def _abandon(self) -> None:
        self._is_stopping = True
        self._worker.kill()
        self._end("its model could not be initialized")

    def _on_exit(self, exited: asyncio.Future[str]) -> None:
        if self._channel.is_open and not self._is_lost:
            self._is_lost = True
            self._channel.read_to_end()
        self._end(exited.result())
        if not self.ended.done():
            self.ended.set_result(None)

    def _on_lost(self, error: Exception) -> None:
        self._is_lost = True
        if not self._is_stopping:  # otherwise its death was reported already
            self._batches.events.on_unavailable(self)
        reason = describe_loss(error)
        if reason == PROCESS_ENDED:
            self._channel.read_to_end()
        self._worker.on_lost()
        if isinstance(error, ProtocolError):
            # Nothing that it may still say explains its end, and nothing of it is to be kept.
            self._worker.kill()
            self._end(reason)
            return
        if self._is_stopping:
            return  # it has until the end of the grace period
        self._loop.call_later(self._worker.exit_timeout_s, self._on_exit_timeout, reason)

    def _on_rank_lost(self, reason: str) -> None:
        if not self._is_stopping:
            self._worker.on_lost()
            self._worker.kill()
            self._end(reason)

    def _on_exit_timeout(self, reason: str) -> None:
        if self._channel.is_open:
            self._worker.kill()
            self._end(reason if reason != PROCESS_ENDED else self._worker.loss)

    def _on_grace_over(self) -> None:
        logger.warning(
            "instance %s did not finalize within %g s and is killed", self.name, self._grace_s
        )
        self._worker.kill()

    def _end(self, reason: str) -> None:
        if not self._channel.is_open:
            return
        self._is_lost = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._channel.close()
        if self._group is not None:
            self._group.close()
        if self._fork_listener is not None:
            self._fork_listener.close()
        self._call_server.close()
        self._services.close()
        self.device_ledger.close()
        self._answer_ready(is_ready=False)
        kind = self._error_kind()
        error = kind(
            f"Stub process '{self.name}' is not healthy. {reason[:1].upper()}{reason[1:]}."
        )
        if not self._initialized.done():
            self._initialized.set_exception(error)
        self._batches.fail_all(error, is_lost=not self._is_stopping)
        if not self._is_stopping:
            self._report_death(reason)

    def _error_kind(self) -> type[ServerError]:
        if self.node:
            return UnavailableError if self.is_to_blame else InstanceUnavailableError
        return InternalError if self.is_to_blame else ForkingProcessEndedError

    def _report_death(self, reason: str) -> None:
        if self._has_started:
            self._batches.events.on_died(self, reason)
        else:
            self._death = reason


class _IgnoredEvents:
    """Receives the events of an instance that never runs a batch."""

    costs = None

    def shown(self, error: ServerError, batch: RunningBatch) -> ServerError:
        return error

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        raise AssertionError(f"{instance.name} answered a batch that it was not given")

    def on_burst(
        self,
        instance: Instance,
        batch: RunningBatch,
        position: int,
        burst: ResponseBurst,
        times_ns: tuple[int, int],
    ) -> None:
        raise AssertionError(f"{instance.name} answered a batch that it was not given")

    def on_unavailable(self, instance: Instance) -> None:
        """Do nothing: `on_died` follows."""

    def on_died(self, instance: Instance, reason: str) -> None:
        logger.debug("%s ended: %s", instance.name, reason)


async def complete_config(
    launcher: Launcher,
    spec: WorkerSpec,
    initialize: Initialize,
    loop: asyncio.AbstractEventLoop,
    services: WorkerServices,
) -> str:
    """Call `auto_complete_config` in a new worker; returns the configuration as JSON text.

    Raises:
        ServerError: `auto_complete_config` raised, or the process ended.
    """
    labels = ModelLabels("", "", (), batching=False)
    if spec.placement is not None:
        spec = structs.replace(spec, placement=structs.replace(spec.placement, group_size=1))
    worker = await launcher.launch(spec)
    instance = PythonInstance(worker, labels, MemoryTrimmer(loop), loop, _IgnoredEvents(), services)
    report = await instance.initialize(structs.replace(initialize, completes_config=True))
    instance.stop()
    return report.config
