# SPDX-License-Identifier: Apache-2.0
"""Where instances run in the user's process: one thread each, waiting on its channel."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pytriton.backend.model_call import is_unrecoverable
from pytriton.transport.arena import IDLE_SECONDS
from pytriton.transport.frames import BatchFailure, Execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.backend.model_call import ModelCall
    from pytriton.transport.channel import Channel, Received
    from pytriton.transport.frames import Frame

logger = logging.getLogger(__name__)

# How many batches the server may have running on one instance at a time.
SYNC_CONCURRENCY = 1
ASYNC_CONCURRENCY = 256


class InstanceHost:
    """Runs one instance of a model on a thread of its own until the channel ends."""

    concurrency = SYNC_CONCURRENCY

    def __init__(
        self, call: ModelCall, channel: Channel, on_unrecoverable: Callable[[], None]
    ) -> None:
        self._call = call
        self._channel = channel
        self._on_unrecoverable = on_unrecoverable
        self._thread = threading.Thread(
            target=self._run, name=f"pytriton-{call.instance_name}", daemon=True
        )

    def start(self) -> None:
        """Start to take batches."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether batches are taken."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the end; the server ends an instance by closing its channel."""
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
        channel = self._channel
        while True:
            received = self._next()
            if isinstance(received.frame, Execute):
                self._answer(received, received.frame)
            # Arrays that the callable did not keep go now, before this thread waits again.
            del received
            channel.gives_back_at_once = True

    def _next(self) -> Received:
        channel = self._channel
        while channel.has_notes or channel.arena.has_idle_segments:
            channel.link.socket.settimeout(IDLE_SECONDS)
            try:
                return self._wait()
            except TimeoutError:
                channel.forget_segments(channel.arena.trim())
                channel.send_notes()
            finally:
                channel.link.socket.settimeout(None)
        return self._wait()

    def _wait(self) -> Received:
        received = self._channel.receive()
        self._channel.gives_back_at_once = False
        assert received is not None
        return received

    def _answer(self, received: Received, execute: Execute) -> None:
        payload = self._channel.payload()
        started_ns = time.monotonic_ns()
        frame: Frame
        stops = False
        try:
            frame = self._call.run(received, payload)
        except BaseException as error:  # noqa: BLE001  whatever user code raises is answered
            stops = is_unrecoverable(error)
            frame = self._call.failure(execute, started_ns, error)
            payload = self._channel.payload()
        self._channel.send(frame, payload)
        self._call.end_spans(execute, frame.error if isinstance(frame, BatchFailure) else None)
        if stops:
            self._on_unrecoverable()
