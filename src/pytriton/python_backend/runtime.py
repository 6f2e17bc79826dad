# SPDX-License-Identifier: Apache-2.0
"""The implementation of `pytriton.pb_utils.runtime.Runtime` in a worker process."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pytriton.errors import ServerError, sendable_text
from pytriton.pb_utils.failures import TritonModelException
from pytriton.python_backend.bls import BlsCall, CallOrigin, RefusedCall
from pytriton.python_backend.connection import Connection
from pytriton.transport.worker_frames import LogLine, ServiceCall

if TYPE_CHECKING:
    import socket

    from pytriton.pb_utils.request import InferenceRequest
    from pytriton.pb_utils.runtime import InferenceCall

# The batch for whose `execute` the current code runs. Tasks inherit it, and so do
# `asyncio.to_thread` and the default executor of the instance's loop; other threads of a model have
# none.
_batch: ContextVar[int] = ContextVar("pytriton_batch", default=0)


class WorkerRuntime:
    """Connects the model of this process, and processes that it forks, to the server."""

    def __init__(
        self,
        connection: Connection,
        fork_socket: socket.socket,
        *,
        instance_name: str,
        model_directory: str,
    ) -> None:
        self.instance_name = instance_name
        self.model_directory = model_directory
        self.can_infer = False  # True from the end of `initialize` to the start of `finalize`
        self._model_thread = threading.get_ident()
        self._fork_socket = fork_socket
        self._connection: Connection | None = connection
        self._connecting = threading.Lock()
        os.register_at_fork(after_in_child=self._on_fork)

    def set_batch(self, batch: int) -> None:
        """Set the batch that this thread, and tasks that it starts, work for; 0: none."""
        _batch.set(batch)

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

    def call(self, action: str, **arguments: Any) -> Any:
        """See `Runtime.call`."""
        return self._connect().call_service(action, arguments)

    def notify(self, action: str, **arguments: Any) -> None:
        """See `Runtime.notify`."""
        connection = self._connection
        if connection is not None:  # a forked child without connection has nothing to release
            connection.outbox.post(ServiceCall(0, action, arguments))

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        line_frame = LogLine(level, sendable_text(message), sendable_text(file), line)
        self._connect().outbox.post(line_frame)

    def _connect(self) -> Connection:
        if self._connection is None:
            with self._connecting:
                if self._connection is None:
                    self._connection = Connection.of_forked_process(self._fork_socket)
        return self._connection

    def _on_fork(self) -> None:
        self._connection = None
        self._connecting = threading.Lock()
        self._model_thread = 0
        _batch.set(0)  # the batch does not wait for this process
