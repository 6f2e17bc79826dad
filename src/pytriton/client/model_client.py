# SPDX-License-Identifier: Apache-2.0
"""The synchronous client; the docstrings of the other clients refer to it."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytriton.client import official, tensors, utils
from pytriton.client.base import BaseModelClient
from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientTimeoutError
from pytriton.client.kserve.address import Tls
from pytriton.client.protocols import GRPC, call_errors, failure_of
from pytriton.client.tensors import Array, Parameters
from pytriton.client.waiting import ModelVersion, ReadinessWait
from pytriton.model_config.triton_model_config import TritonModelConfig

if TYPE_CHECKING:
    from typing_extensions import Self

# Keys are ids. Unlike a weak set, it can be iterated while other threads change it.
_clients: weakref.WeakValueDictionary[int, ModelClient] = weakref.WeakValueDictionary()


@atexit.register
def _close_all() -> None:
    """Close the clients that are still open when the program ends.

    Closing waits for gRPC's threads, which do not run any more when Python destroys the remaining
    objects. Exit functions that the program registered after importing this module run earlier and
    can still use its clients.
    """
    for reference in _clients.valuerefs():
        client = reference()
        if client is not None:
            ModelClient.close(client)  # without a warning about open streams


class ModelClient(BaseModelClient):
    """A client of one model, over HTTP or gRPC. Any number of threads may share it.

    The arguments are those of `BaseModelClient`.

    After a fork, the child may use the client over HTTP; over gRPC, calls in the child are refused.

    Examples:
        >>> with ModelClient("localhost", "AddSub") as client:
        ...     result = client.infer_sample(a, b)  # in the model's order of inputs
        ...     result = client.infer_batch(a=batch_a, b=batch_b)  # by name

    Raises:
        PyTritonClientInvalidUrlError: The address is malformed.
        PyTritonClientTimeoutError: With `lazy_init=False`: the server was not ready in time.
        PyTritonClientModelUnavailableError: With `lazy_init=False`: the model was not ready in
            time.
    """

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(
            url,
            model_name,
            model_version,
            lazy_init=lazy_init,
            init_timeout_s=init_timeout_s,
            inference_timeout_s=inference_timeout_s,
            model_config=model_config,
            ensure_model_is_ready=ensure_model_is_ready,
            access_token=access_token,
            tls=tls,
        )
        self._init_lock = threading.Lock()
        self._general_client = self.create_client_from_url(url)
        self._infer_client = self.create_client_from_url(url)
        connections = (self._general_client, self._infer_client)
        self._finalizer = weakref.finalize(self, _close, connections, self._only_in_pid)
        self._finalizer.atexit = False  # at exit, `_close_all` runs early enough
        _clients[id(self)] = self
        if not lazy_init:
            try:
                self._ready_model_config()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards. May be called twice."""
        self._closed = True
        # Not through the finalizer, which does nothing any more in functions called at exit.
        finalizer = self._finalizer.detach()
        if finalizer is not None:
            _, close, arguments, _ = finalizer
            close(*arguments)

    @property
    def model_config(self) -> TritonModelConfig:
        """The model's configuration; the first access waits until the model is ready.

        Raises:
            PyTritonClientTimeoutError: The server was not ready in time.
            PyTritonClientModelUnavailableError: The model was not ready in time.
            PyTritonClientClosedError: The client is closed and does not know the configuration.
        """
        return self._model_config or self._ready_model_config()

    @property
    def is_batching_supported(self) -> bool:
        """Whether the model's tensors have a batch dimension; waits as `model_config` does."""
        return self.model_config.max_batch_size > 0

    def wait_for_server(self, timeout_s: float) -> None:
        """Wait until the server is ready.

        Args:
            timeout_s: the timeout.

        Raises:
            PyTritonClientTimeoutError: The server was not ready in time.
            PyTritonClientClosedError: The client is closed.
        """
        self._check_usable()
        with self._converting_close_errors():
            utils.wait_for_server_ready(self._general_client, timeout_s, self._auth_headers)

    def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the server and the model are ready.

        Args:
            timeout_s: timeout for both together.

        Raises:
            PyTritonClientTimeoutError: The server was not ready in time.
            PyTritonClientModelUnavailableError: The model was not ready in time.
            PyTritonClientClosedError: The client is closed.
        """
        self._check_usable()
        with self._converting_close_errors():
            utils.wait_for_model_ready(
                self._general_client,
                self._model_name,
                self._model_version,
                timeout_s,
                self._auth_headers,
            )

    def load_model(self, config: str | None = None, files: dict[str, bytes] | None = None) -> None:
        """Request that the server loads or reloads the model from its repository.

        Args:
            config: configuration as JSON, instead of the one in the repository.
            files: contents of files, instead of those in the repository; keys are "file:<path>".

        Raises:
            PyTritonClientInferenceServerError: The server refused, or loading failed.
            PyTritonClientTimeoutError: The model was not loaded within `init_timeout_s`.
        """
        self._manage("load_model", "loading of the model", config=config, files=files)
        self._model_ready, self._model_config = False, None  # the configuration may have changed

    def unload_model(self) -> None:
        """Request that the server unloads the model.

        Raises:
            PyTritonClientInferenceServerError: The server refused.
            PyTritonClientTimeoutError: The server did not answer within `init_timeout_s`.
        """
        self._manage("unload_model", "unloading of the model")

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Infer one sample: no array has a batch dimension, whether the model has one or not.

        Args:
            *inputs: inputs in the model's order; optional ones at the end may be omitted.
            parameters: parameters of the request.
            headers: headers of the request; they take precedence over the access token's header.
            **named_inputs: inputs by name instead; optional ones may be omitted.

        Returns:
            Outputs by name.

        Raises:
            PyTritonClientValueError: There are no inputs, or both positional and named ones; an
                input is not an array; parameters or headers have a wrong type.
            PyTritonClientTimeoutError: The server was not ready or did not answer in time.
            PyTritonClientModelUnavailableError: The model was not ready in time.
            PyTritonClientInferenceServerError: The server answered with an error, or the model is
                decoupled.
            PyTritonClientClosedError: The client is closed.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=False)

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Like `infer_sample`, but each input and output has a leading batch dimension.

        Args:
            *inputs: inputs in the model's order.
            parameters: parameters of the request.
            headers: headers of the request.
            **named_inputs: inputs by name instead.

        Returns:
            Outputs by name.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: The model has no batch dimension.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=True)

    def _ready_model_config(self) -> TritonModelConfig:
        """Returns the configuration; the first thread that needs it waits for the model."""
        config = self._model_config  # read once, because another thread may reload the model
        if self._model_ready and config is not None:
            return config
        self._check_usable()
        wait = ReadinessWait(self._init_timeout_s)
        if not self._init_lock.acquire(timeout=self._init_timeout_s):
            raise PyTritonClientTimeoutError(
                f"Waiting for model {self._model_name} to be ready timed out. Another thread has "
                f"been waiting for it for {self._init_timeout_s:g} s."
            )
        try:
            config = self._model_config
            if not self._model_ready or config is None:
                with self._converting_close_errors():
                    config = utils.wait_for_model_config(
                        self._general_client,
                        ModelVersion(self._model_name, self._model_version),
                        self._wait_for_model(wait.limit_s()),
                        self._auth_headers,
                    )
                self._model_config, self._model_ready = config, True
            return config
        finally:
            self._init_lock.release()

    def _infer(
        self,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
        *,
        is_batch: bool,
    ) -> dict[str, Array]:
        self._check_arguments(inputs, named_inputs, parameters, headers)
        config = self._ready_model_config()
        began_s = time.monotonic()
        given, finish = self._prepare(config, inputs, named_inputs, is_batch=is_batch)
        request = official.suited(
            self._request(config, given, parameters), self._infer_client, self._protocol.scheme
        )
        limit_s = self._limit_s(given, began_s)
        try:
            with self._protocol.limited(self._infer_client, limit_s):
                result = self._infer_client.infer(
                    **request, headers=self._headers(headers), **self._protocol.limit(limit_s)
                )
            return finish(tensors.arrays_in(result))
        except call_errors(ValueError) as error:
            if self._closed:  # by another thread; gRPC then raises ValueError or cancels
                raise PyTritonClientClosedError(f"{type(self).__name__} is closed") from error
            if isinstance(error, ValueError) and self._protocol is GRPC:
                raise  # protobuf refused an argument of the caller
            raise self._failure(error) from error

    def _manage(self, name: str, during: str, **arguments: Any) -> None:
        self._check_usable()
        try:
            utils.call_within(
                self._init_timeout_s,
                self._general_client,
                name,
                self._model_name,
                headers=self._headers(None),
                **arguments,
            )
        except call_errors() as error:
            raise failure_of(error, during, f"{self._init_timeout_s:g} s") from error


def _close(clients: tuple[Any, ...], only_in_pid: int | None) -> None:
    if only_in_pid not in (None, os.getpid()):
        return  # a fork does not have the threads that closing waits for
    with contextlib.ExitStack() as stack:  # closes all of them even if one raises
        for client in clients:
            stack.callback(client.close)
