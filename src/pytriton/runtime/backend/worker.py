# SPDX-License-Identifier: Apache-2.0
"""Runs one instance of a model in its own process, whatever kind it is: loads it, until its end.

The main thread both reads the channel and calls the backend, except in processes without batches.
`is_ready` has a thread of its own.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode, ServerError, resource_error, sendable_text
from pytriton.runtime.backend.connection import GroupMember
from pytriton.runtime.backend.failure_text import describe
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.backend.mailbox import MessageInbox, Waiter
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.transport.frames import (
    Cancel,
    CheckReady,
    Credit,
    Execute,
    Initialize,
    Initialized,
    ReadyReport,
)

if TYPE_CHECKING:
    from pytriton.runtime.backend.backend import Backend, Environment
    from pytriton.runtime.backend.connection import ServerConnection
    from pytriton.runtime.transport.channel import Received


class ReadyCheck:
    """Answers checks one at a time; checks that arrive during a call get its result."""

    def __init__(self, worker: Worker, connection: ServerConnection) -> None:
        self._worker = worker
        self._connection = connection
        self._inbox = MessageInbox(is_low_priority=True)

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="pytriton-ready", daemon=True).start()

    def on_check(self, received: Received) -> Waiter:
        """Queue a check."""
        return self._inbox.put(received)

    def _run(self) -> None:
        mailbox, checks = self._connection.mailbox, self._inbox.messages
        while True:
            try:
                mailbox.wait(self._inbox)
            except EOFError:
                return
            is_ready = self._worker.is_ready()
            while checks:
                check = checks.popleft().frame
                assert isinstance(check, CheckReady)
                self._connection.outbox.post(ReadyReport(check.call, is_ready))


class Worker:
    """Runs a model over a connection until the server ends it."""

    def __init__(
        self, backend: Backend, environment: Environment, connection: ServerConnection
    ) -> None:
        self._backend = backend
        self._environment = environment
        self._connection = connection
        self._is_ending = False

    def run(self, frame: Initialize) -> None:
        """Run the model; returns when it has ended.

        Raises:
            EOFError: The server has ended, or ConnectionError.
        """
        outbox = self._connection.outbox
        try:
            report = self._load(frame)
        except BaseException as error:  # noqa: BLE001  all that a model raises is reported
            report = self._load_failure(frame, error)
        outbox.send(lambda _: report)
        if report.is_failure or frame.completes_config:
            self._backend.close()
            return
        member = GroupMember(frame.arguments, self._connection)
        if member.is_follower:
            self._backend.follow(member)
        else:
            self._environment.can_infer = True
            self._run_batches()
        self._environment.can_infer = False
        self._is_ending = True
        self._backend.close()
        outbox.flush()
        member.leave()

    def is_ready(self) -> bool:
        """Ask the backend; a model that raises is not ready."""
        try:
            return self._backend.is_ready()
        except BaseException as error:  # noqa: BLE001  see above
            if not self._is_ending:  # else the end of the model has cancelled it
                self._environment.log_raised(error, "raised in is_ready")
            return False

    def _load(self, frame: Initialize) -> Initialized:
        if frame.completes_config:
            return Initialized(config=self._backend.complete_config(frame))
        connection = self._connection
        self._batches = batches = OpenBatches(
            connection.outbox,
            connection.loop_reader,
            frame.output_names,
            is_decoupled=frame.is_decoupled,
            is_batching=frame.is_batching,
        )
        connection.handlers[Cancel] = batches.on_cancel
        connection.handlers[Credit] = batches.on_credit
        os.register_at_fork(after_in_child=batches.on_fork)
        report = self._backend.load(frame, batches)
        connection.handlers[CheckReady] = self._report_ready
        if report.has_ready_check:
            check = ReadyCheck(self, connection)
            connection.handlers[CheckReady] = check.on_check
            check.start()
        return report

    def _load_failure(self, frame: Initialize, error: BaseException) -> Initialized:
        """Returns the report of a model that cannot be loaded; a foreseen error is not logged."""
        code = error.code if isinstance(error, ServerError | TritonModelException) else None
        if isinstance(code, ErrorCode):  # a model may have written anything
            return Initialized(error=sendable_text(str(error)), error_code=int(code))
        self._environment.log_raised(error, "could not be loaded", frame.model_path)
        if resource_error(error) is not None:
            return Initialized(error=describe(error), error_code=int(ErrorCode.UNAVAILABLE))
        return Initialized(error=describe(error))

    def _report_ready(self, received: Received) -> None:
        frame = received.frame
        assert isinstance(frame, CheckReady)
        self._connection.outbox.post(ReadyReport(frame.call, True))

    def _run_batches(self) -> None:
        connection, batches = self._connection, self._batches
        backend, environment = self._backend, self._environment
        while True:
            received = connection.next_job()
            execute = received.frame
            if type(execute) is not Execute:  # Finalize
                return
            batch = batches.begin(received)
            environment.set_batch(execute.batch, execute.ids or None)
            try:
                backend.run(batch)
            finally:
                environment.set_batch(0)
            # Free arrays that the model does not keep now, before this thread waits again.
            del received, batch
