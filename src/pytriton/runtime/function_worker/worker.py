# SPDX-License-Identifier: Apache-2.0
"""Runs one instance of a bound function in its own process, from its import to its end.

The main thread both reads the channel and calls the function, unless that is asynchronous.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode, ServerError, sendable_text
from pytriton.base.log_switches import JSON_FORMAT
from pytriton.decorators.context import TritonContext
from pytriton.exceptions import PyTritonError
from pytriton.runtime.function_worker.loading import load_function, make_follower
from pytriton.runtime.functions.host import InstanceHost
from pytriton.runtime.python_backend.failure_text import describe, describe_fully, raised_at
from pytriton.runtime.python_backend.group_member import GroupMember
from pytriton.runtime.python_backend.output import LabelledStream, end_output
from pytriton.runtime.transport.frames import Finalize, Initialize, Initialized, LogChange, LogLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.log_switches import LogSwitches
    from pytriton.runtime.python_backend.connection import Connection
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import Frame

UNRECOVERABLE = 3  # exit status after an error with which the function asks for its end
_RANK_FAILED = 4  # that of a process without batches whose function raised


class FunctionWorker:
    """Runs a bound function over a connection until the server ends it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel = connection.outbox.channel
        self._is_finalized = False

    def run(self, frame: Initialize) -> None:
        """Run the model; returns after `Finalize`, or if it cannot be loaded.

        Raises:
            EOFError: The server has ended, or ConnectionError.
        """
        self._use(frame.log)
        member = GroupMember(frame.arguments, self._connection)
        try:
            work = self._begin_work(frame, member)
            concurrency = work.concurrency if isinstance(work, InstanceHost) else 0
            report = Initialized(concurrency=concurrency)
        except BaseException as error:  # noqa: BLE001  all that code of users raises is reported
            report = self._load_failure(frame, error)
        self._connection.outbox.send(lambda _: report)
        if report.is_failure:
            return
        if isinstance(work, InstanceHost):
            self._run_batches(work)
        else:
            self._connection.handlers[LogChange] = self._on_log_change
            threading.Thread(target=self._follow, args=(member, work), daemon=True).start()
            member.wait_for_end()
        member.leave()

    def _run_batches(self, host: InstanceHost) -> None:
        try:
            host.run()
        except (EOFError, ConnectionError):
            if not self._is_finalized:
                raise
        if not self._is_finalized:
            raise EOFError
        self._channel.set_blocking(True)  # an event loop may have changed it

    def _follow(self, member: GroupMember, work: Callable[[], object] | None) -> None:
        """Do what the factory has returned for a process that gets no batches."""
        try:
            if work is not None:
                work()
        except BaseException as error:  # noqa: BLE001  the process ends
            self._log_raised(error, f"The function of rank {member.rank} raised")
            self._connection.outbox.flush()
            os._exit(_RANK_FAILED)  # which ends the group

    def _begin_work(
        self, frame: Initialize, member: GroupMember
    ) -> InstanceHost | Callable[[], object] | None:
        source, arguments = frame.function, frame.arguments
        assert source is not None, "the server has chosen this worker for it"
        if member.is_follower:
            return make_follower(source, member.size)
        name = arguments["model_name"]
        model = load_function(source, name, int(arguments["model_version"]), member.size)
        model.prepare(TritonContext())
        call = model.only_call(arguments["model_instance_name"])
        host = model.host_class(call.infer_func)(call, self._channel, self._end_unrecoverably)
        host.on_other = self._on_other
        return host

    def _on_other(self, frame: Frame) -> None:
        if isinstance(frame, LogChange):
            self._use(frame.switches)
        elif isinstance(frame, Finalize):
            self._is_finalized = True
            raise EOFError  # noqa: TRY004  it ends the host's loop

    def _on_log_change(self, received: Received) -> None:
        self._on_other(received.frame)

    def _use(self, switches: LogSwitches) -> None:
        LabelledStream.is_json = switches.format == JSON_FORMAT

    def _load_failure(self, frame: Initialize, error: BaseException) -> Initialized:
        """Returns the report of a failed load; only an error that was not foreseen is logged."""
        if isinstance(error, ServerError):
            return Initialized(error=sendable_text(error.message), error_code=int(error.code))
        if isinstance(error, PyTritonError):
            text = sendable_text(error.message)
            return Initialized(error=text, error_code=int(ErrorCode.INVALID_ARG))
        name = frame.arguments["model_instance_name"]
        self._log_raised(error, f"The function of '{name}' could not be loaded")
        return Initialized(error=describe(error))

    def _log_raised(self, error: BaseException, what: str) -> None:
        line = LogLine("ERROR", f"{what}: {describe_fully(error)}", *raised_at(error))
        self._connection.outbox.post(line)

    def _end_unrecoverably(self) -> None:
        """End the process: the function has said that it cannot work any more."""
        self._channel.set_blocking(True)
        self._channel.flush()  # the answer may wait for room in the socket
        end_output()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(UNRECOVERABLE)
