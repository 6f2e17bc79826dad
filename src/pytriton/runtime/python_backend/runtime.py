# SPDX-License-Identifier: Apache-2.0
"""The implementation of `pytriton.runtime.pb_utils.runtime.Runtime` in a worker process."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ServerError, sendable_text
from pytriton.base.log_switches import JSON_FORMAT, LogSwitches
from pytriton.base.request_ids import current_request_ids, set_request_ids
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.python_backend.bls import BlsCall, CallOrigin, RefusedCall
from pytriton.runtime.python_backend.connection import Connection
from pytriton.runtime.python_backend.output import LabelledStream
from pytriton.runtime.transport.frames import LogLine, ServiceCall

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from pytriton.runtime.pb_utils.request import InferenceRequest
    from pytriton.runtime.pb_utils.runtime import InferenceCall
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import LogChange

_ALL = LogSwitches(verbose=1)
_LEVELS = {
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "VERBOSE": logging.DEBUG,
}

# The batch for whose `execute` the current code runs. Tasks inherit it, and so do
# `asyncio.to_thread` and the default executor of the instance's loop; other threads of a model have
# none.
_batch: ContextVar[int] = ContextVar("pytriton_batch", default=0)


class WorkerRuntime:
    """Connects the model of this process, and processes that it forks, to the server."""

    def __init__(
        self,
        connection: Connection,
        fork_socket: socket.socket | None,
        *,
        instance_name: str,
        model_directory: str,
        backend_config: Mapping[str, str] | None = None,
        switches: LogSwitches | None = None,
    ) -> None:
        self.instance_name = instance_name
        self.model_directory = model_directory
        self.backend_config = backend_config or {}
        self._use(_ALL if switches is None else switches)
        self.can_infer = False  # True from the end of `initialize` to the start of `finalize`
        self._model_thread = threading.get_ident()
        self._fork_socket = fork_socket
        self._connection: Connection | None = connection
        self._connecting = threading.Lock()
        os.register_at_fork(after_in_child=self._on_fork)

    def set_batch(self, batch: int, ids: Mapping[int, str] | None = None) -> None:
        """Set the batch that this thread, and tasks that it starts, work for; 0: none."""
        _batch.set(batch)
        set_request_ids(ids)

    @property
    def current_batch(self) -> int:
        """The batch that this thread works for; 0: none, or unknown."""
        return _batch.get()

    def infer(
        self, request: InferenceRequest, *, decoupled: bool, is_awaited: bool = False
    ) -> InferenceCall:
        """See `Runtime.infer`."""
        if not self.can_infer:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        connection = self._connect()
        call = BlsCall(connection, is_decoupled=decoupled)
        try:
            call.start(request, self._origin(connection, is_awaited=is_awaited))
        except ServerError as error:
            return RefusedCall(request, error)
        return call

    def _origin(self, connection: Connection, *, is_awaited: bool) -> CallOrigin:
        batch = _batch.get()
        thread = threading.get_ident()
        if not is_awaited:
            if thread == self._model_thread:
                return CallOrigin(blocked_batch=batch)
            if thread == connection.loop_reader.own_thread:
                return CallOrigin(blocked_batch=batch, blocks_loop=True)
        return CallOrigin(batch)

    @property
    def connection(self) -> Connection:
        """The connection of this process to the server."""
        return self._connect()

    def call(self, action: str, **arguments: Any) -> Any:
        """See `Runtime.call`."""
        return self._connect().call_service(action, arguments)

    def notify(self, action: str, **arguments: Any) -> None:
        """See `Runtime.notify`."""
        connection = self._connection
        if connection is not None:  # a forked child without connection has nothing to release
            connection.outbox.post(ServiceCall(0, action, arguments))

    def logs_level(self, level: str) -> bool:
        """Returns whether the log has lines of a level."""
        return self.switches.wants(_LEVELS.get(level, logging.INFO))

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        if not self.logs_level(level):
            return
        line_frame = LogLine(
            level,
            sendable_text(message),
            sendable_text(file),
            line,
            request_ids=current_request_ids(),
        )
        if self._connection is None and self._fork_socket is None:
            sys.stderr.write(f"{level}: {message}\n")  # the best that such a process can do
            return
        self._connect().outbox.post(line_frame)

    def on_log_change(self, received: Received) -> None:
        """Follow a change of the log's settings."""
        frame: LogChange = received.frame  # type: ignore[assignment]  # registered for these only
        self._use(frame.switches)

    def _use(self, switches: LogSwitches) -> None:
        self.switches = switches
        LabelledStream.is_json = switches.format == JSON_FORMAT

    def _connect(self) -> Connection:
        if self._connection is None:
            with self._connecting:
                if self._connection is None:
                    self._connection = self._connect_fork()
        return self._connection

    def _connect_fork(self) -> Connection:
        if self._fork_socket is None:
            raise TritonModelException(
                f"A process that '{self.instance_name}' forked cannot use the server: it runs on "
                "another machine, where only the process of the instance itself has a connection."
            )
        return Connection.of_forked_process(self._fork_socket)

    def _on_fork(self) -> None:
        self._connection = None
        self._connecting = threading.Lock()
        self._model_thread = 0
        _batch.set(0)  # the batch does not wait for this process
        self.switches = _ALL  # nobody tells this process of changes; the server drops lines
