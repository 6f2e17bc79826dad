# SPDX-License-Identifier: Apache-2.0
"""Runs instances in the user's process: one thread each, which receives from its channel."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.transport.arena import IDLE_SECONDS
from pytriton.runtime.transport.channel import IdleReader
from pytriton.runtime.transport.frames import BatchFailure, Execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.functions.model_call import ModelCall
    from pytriton.runtime.transport.channel import Channel, Received
    from pytriton.runtime.transport.frames import Frame

logger = logging.getLogger(__name__)

# The maximum number of batches that the server runs on one instance at the same time.
SYNC_CONCURRENCY = 1
ASYNC_CONCURRENCY = 256


def _ignore(frame: Frame) -> None:
    """Do nothing: other messages only release memory."""


class InstanceHost:
    """Runs one instance of a model in its own thread until the channel is closed."""

    concurrency = SYNC_CONCURRENCY

    def __init__(
        self, call: ModelCall, channel: Channel, on_unrecoverable: Callable[[], None]
    ) -> None:
        self._call = call
        self._channel = channel
        self._on_unrecoverable = on_unrecoverable
        # Called with messages that are not about batches; an EOFError of it ends the instance.
        self.on_other: Callable[[Frame], None] = _ignore
        self._thread = threading.Thread(
            target=self._run, name=f"pytriton-{call.instance_name}", daemon=True
        )

    def start(self) -> None:
        """Start to accept batches."""
        self._thread.start()

    def run(self) -> None:
        """Accept batches on this thread, until the server has ended the instance.

        Raises:
            EOFError: The server has closed the channel, or ConnectionError, unless the callable
                runs on an event loop: then it returns.
        """
        self._serve()

    def is_alive(self) -> bool:
        """Whether batches are accepted."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait until the instance ends; the server ends it by closing its channel."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._serve()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            logger.debug("%s: the server closed the channel", self._call.instance_name)
        except Exception:
            logger.exception("%s: the instance ended", self._call.instance_name)
        finally:
            self._channel.close()

    def _serve(self) -> None:
        reader = self._make_reader()
        while True:
            received = reader.receive()
            if isinstance(received.frame, Execute):
                set_request_ids(received.frame.ids or None)
                self._answer(received, received.frame)
                set_request_ids(None)
            else:
                self.on_other(received.frame)
            # Release arrays that the callable did not keep before this thread waits again.
            del received

    def _make_reader(self) -> IdleReader:
        channel = self._channel
        return IdleReader(channel, lambda: channel.has_idle_memory, self._trim)

    def _trim(self) -> None:
        self._channel.trim(IDLE_SECONDS)

    def _answer(self, received: Received, execute: Execute) -> None:
        payload = self._channel.payload()
        started_ns = time.monotonic_ns()
        frame: Frame
        stops = False
        try:
            frame = self._call.run(received, payload)
        except BaseException as error:  # noqa: BLE001  every error of user code is answered
            stops = is_unrecoverable(error)
            frame = self._call.failure(execute, started_ns, error)
            payload = self._channel.payload()
        try:
            self._channel.send(frame, payload)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  no memory for a large response: send a short error
            frame = self._call.failure(execute, started_ns, error)
            self._channel.send(frame)
        self._call.end_spans(execute, frame.error if isinstance(frame, BatchFailure) else None)
        if stops:
            self._on_unrecoverable()
