# SPDX-License-Identifier: Apache-2.0
"""The client whose methods return futures: many requests in parallel without asyncio."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton.client.connections import MAX_TIMEOUT_S
from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientQueueFullError
from pytriton.client.kserve.address import Tls
from pytriton.client.model_client import ModelClient
from pytriton.client.tensors import Array, Parameters
from pytriton.model_config.triton_model_config import TritonModelConfig

if TYPE_CHECKING:
    from typing_extensions import Self

_UNLIMITED = 2**31 - 1

T = TypeVar("T")


class FuturesModelClient:
    """Like `ModelClient`, but its methods return futures, which also raise the errors.

    Its threads share one `ModelClient`, which the first request creates.

    Args:
        url: as in `BaseModelClient`.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        max_workers: maximum number of requests in progress, each in a thread that is started when
            it is needed; None means no limit.
        max_queue_size: maximum number of requests that wait for a thread; None means no limit.
        non_blocking: whether a request is refused at once if the queue is full. Otherwise the call
            waits for space, for at most `inference_timeout_s` if that is given.
        init_timeout_s: as in `BaseModelClient`.
        inference_timeout_s: as in `BaseModelClient`.
        access_token: as in `BaseModelClient`.
        tls: as in `BaseModelClient`.

    Examples:
        >>> with FuturesModelClient("localhost", "AddSub") as client:
        ...     futures = [client.infer_sample(a, b) for a, b in samples]
        ...     results = [future.result() for future in futures]

    Raises:
        ValueError: `max_workers` or `max_queue_size` is not positive.
    """

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        max_workers: int | None = 128,
        max_queue_size: int | None = 128,
        non_blocking: bool = False,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        access_token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        for name, value in (("max_workers", max_workers), ("max_queue_size", max_queue_size)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be greater than 0 or None, got {value}")
        self._settings: dict[str, Any] = {
            "url": url,
            "model_name": model_name,
            "model_version": model_version,
            "init_timeout_s": init_timeout_s,
            "inference_timeout_s": inference_timeout_s,
            "access_token": access_token,
            "tls": tls,
        }
        self._limits: dict[str, Any] = {
            "max_workers": max_workers,
            "max_queue_size": max_queue_size,
            "non_blocking": non_blocking,
        }
        self._template: ModelClient | None = None
        self._client: ModelClient | None = None
        self._lock = threading.Lock()
        self._free_slots = threading.Semaphore(max_queue_size or _UNLIMITED)
        self._thread_state = threading.local()
        self._threads = ThreadPoolExecutor(
            max_workers or _UNLIMITED,
            f"pytriton-{model_name}",
            initializer=functools.partial(setattr, self._thread_state, "is_worker", True),
        )
        self._owner_pid = os.getpid()
        self._closed = False

    @classmethod
    def from_existing_client(cls, existing_client: FuturesModelClient) -> Self:
        """Create a client with the settings of another client.

        Args:
            existing_client: the client to copy, with the model's configuration if it has that.

        Returns:
            A client with its own threads and connections.
        """
        new = cls(**existing_client._settings, **existing_client._limits)
        new._template = existing_client._client or existing_client._template
        return new

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, wait: bool = True) -> None:
        """Refuse new requests, finish the accepted ones, and close the connections.

        Args:
            wait: whether to return only when this is done. A callback of a future cannot wait for
                the thread that runs it, so there the call returns at once.
        """
        with self._lock:
            is_first, self._closed = not self._closed, True
        if wait and not getattr(self._thread_state, "is_worker", False):
            self._finish()
        elif is_first:
            threading.Thread(target=self._finish, name="pytriton-close").start()

    def wait_for_model(self, timeout_s: float) -> Future[None]:
        """Like `ModelClient.wait_for_model`.

        Args:
            timeout_s: timeout for the server and the model together.

        Returns:
            A future of None.

        Raises:
            PyTritonClientClosedError: The client is closed.
            PyTritonClientQueueFullError: The queue is full.
        """
        return self._submit(lambda client: client.wait_for_model(timeout_s))

    def model_config(self) -> Future[TritonModelConfig]:
        """Like `ModelClient.model_config`, but a method.

        Returns:
            A future of the configuration.

        Raises:
            PyTritonClientClosedError: The client is closed.
            PyTritonClientQueueFullError: The queue is full.
        """
        return self._submit(lambda client: client.model_config)

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> Future[dict[str, Array]]:
        """Like `ModelClient.infer_sample`.

        Args:
            *inputs: inputs in the model's order.
            parameters: parameters of the request.
            headers: headers of the request.
            **named_inputs: inputs by name instead.

        Returns:
            A future of the outputs by name.

        Raises:
            PyTritonClientClosedError: The client is closed.
            PyTritonClientQueueFullError: The queue is full.
        """
        return self._submit(
            lambda client: client.infer_sample(
                *inputs, parameters=parameters, headers=headers, **named_inputs
            )
        )

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> Future[dict[str, Array]]:
        """Like `ModelClient.infer_batch`.

        Args:
            *inputs: inputs in the model's order.
            parameters: parameters of the request.
            headers: headers of the request.
            **named_inputs: inputs by name instead.

        Returns:
            A future of the outputs by name.

        Raises:
            PyTritonClientClosedError: The client is closed.
            PyTritonClientQueueFullError: The queue is full.
        """
        return self._submit(
            lambda client: client.infer_batch(
                *inputs, parameters=parameters, headers=headers, **named_inputs
            )
        )

    def _submit(self, request: Callable[[ModelClient], T]) -> Future[T]:
        self._check_usable()
        blocking = not self._limits["non_blocking"]
        timeout_s = self._settings["inference_timeout_s"] if blocking else None
        if timeout_s is not None:
            timeout_s = min(timeout_s, MAX_TIMEOUT_S)
        if not self._free_slots.acquire(blocking=blocking, timeout=timeout_s):
            raise PyTritonClientQueueFullError(
                "Expected space for one more request, but "
                f"{self._limits['max_queue_size']} requests are already waiting"
            )

        def run() -> T:
            self._free_slots.release()  # the request has left the queue
            return request(self._shared_client())

        with self._lock:
            self._check_usable()  # it may have been closed while this call waited
            future = self._threads.submit(run)
        future.add_done_callback(self._after_request)
        return future

    def _after_request(self, future: Future[Any]) -> None:
        if future.cancelled():  # before it started
            self._free_slots.release()

    def _check_usable(self) -> None:
        if self._closed:
            raise PyTritonClientClosedError(f"{type(self).__name__} is closed")
        if self._owner_pid != os.getpid():
            raise PyTritonClientClosedError(
                f"{type(self).__name__} was made in process {self._owner_pid}; its fork "
                f"{os.getpid()} does not have its threads. Make a client in each process."
            )

    def _shared_client(self) -> ModelClient:
        with self._lock:
            if self._client is None and self._template is not None:
                self._client = ModelClient.from_existing_client(self._template)
            elif self._client is None:
                self._client = ModelClient(**self._settings)
            return self._client

    def _finish(self) -> None:
        self._threads.shutdown()
        if self._client is not None:
            self._client.close()
