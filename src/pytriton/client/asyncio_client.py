# SPDX-License-Identifier: Apache-2.0
"""The clients for asyncio; one of them for decoupled models, which answer any number of times."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from pytriton.client import asyncio_utils, official, tensors
from pytriton.client.asyncio_connections import AsyncioTimeLimit
from pytriton.client.base import BaseModelClient
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.protocols import GRPC, call_errors
from pytriton.client.tensors import Array, Parameters
from pytriton.client.waiting import ModelVersion, ReadinessWait
from pytriton.model_config.triton_model_config import TritonModelConfig

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncioModelClient(BaseModelClient):
    """Like `ModelClient`, but its methods are coroutines. It belongs to one event loop.

    The arguments are those of `BaseModelClient`. With `lazy_init=False`, `async with`
    waits for the model; if that fails, the client is closed.

    Examples:
        >>> async with AsyncioModelClient("grpc://localhost", "AddSub") as client:
        ...     result = await client.infer_sample(a, b)
    """

    _is_asyncio = True

    # Created on first use, inside the event loop that they belong to.
    @functools.cached_property
    def _general_client(self) -> Any:
        return self.create_client_from_url(self._url.with_scheme)

    @functools.cached_property
    def _infer_client(self) -> Any:
        return self.create_client_from_url(self._url.with_scheme)

    @functools.cached_property
    def _init_lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def __aenter__(self) -> Self:
        if not self._lazy_init:
            try:
                await self._ready_model_config()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the client cannot be used afterwards. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._only_in_pid not in (None, os.getpid()):
            return  # in a fork this would wait for threads, or close the parent's connections
        async with contextlib.AsyncExitStack() as stack:  # closes all of them even if one raises
            for name in ("_general_client", "_infer_client"):
                client = self.__dict__.get(name)
                if client is not None:
                    stack.push_async_callback(client.close)

    @property
    def model_config(self) -> Coroutine[Any, Any, TritonModelConfig]:
        """Like `ModelClient.model_config`, to be awaited."""
        return self._known_model_config()

    async def wait_for_model(self, timeout_s: float) -> None:
        """Like `ModelClient.wait_for_model`.

        Args:
            timeout_s: timeout for the server and the model together.

        Raises:
            PyTritonClientTimeoutError: The server was not ready in time.
            PyTritonClientModelUnavailableError: The model was not ready in time.
            PyTritonClientClosedError: The client is closed.
        """
        self._check_usable()
        with self._converting_close_errors():
            await asyncio_utils.asyncio_wait_for_model_ready(
                self._general_client,
                self._model_name,
                self._model_version,
                timeout_s,
                self._auth_headers,
            )

    async def infer_sample(
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Like `ModelClient.infer_sample`.

        Args:
            *inputs: inputs in the model's order.
            parameters: parameters of the request.
            headers: headers of the request.
            **named_inputs: inputs by name instead.

        Returns:
            Outputs by name.
        """
        return await self._infer(inputs, named_inputs, parameters, headers, is_batch=False)

    async def infer_batch(
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Like `ModelClient.infer_batch`.

        Args:
            *inputs: inputs in the model's order.
            parameters: parameters of the request.
            headers: headers of the request.
            **named_inputs: inputs by name instead.

        Returns:
            Outputs by name.
        """
        return await self._infer(inputs, named_inputs, parameters, headers, is_batch=True)

    async def _known_model_config(self) -> TritonModelConfig:
        return self._model_config or await self._ready_model_config()

    async def _ready_model_config(self) -> TritonModelConfig:
        """Returns the configuration; the first task that needs it waits for the model."""
        if self._model_ready and self._model_config is not None:
            return self._model_config
        self._check_usable()
        wait = ReadinessWait(self._init_timeout_s)
        try:
            with AsyncioTimeLimit(self._init_timeout_s):
                await self._init_lock.acquire()
        except asyncio.TimeoutError as error:
            raise PyTritonClientTimeoutError(
                f"Timeout while waiting for model {self._model_name} to be ready: another task has "
                f"been waiting for it for {self._init_timeout_s:g} s."
            ) from error
        try:
            if not self._model_ready or self._model_config is None:
                with self._converting_close_errors():
                    self._model_config = await asyncio_utils.asyncio_wait_for_model_config(
                        self._general_client,
                        ModelVersion(self._model_name, self._model_version),
                        self._wait_for_model(wait.limit_s()),
                        self._auth_headers,
                    )
                self._model_ready = True
            return self._model_config
        finally:
            self._init_lock.release()

    async def _infer(
        self,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
        *,
        is_batch: bool,
    ) -> dict[str, Array]:
        self._check_arguments(inputs, named_inputs, parameters, headers)
        config = await self._ready_model_config()
        began_s = time.monotonic()
        given, finish = self._prepare(config, inputs, named_inputs, is_batch=is_batch)
        request = official.suited(
            self._request(config, given, parameters), self._infer_client, self._protocol.scheme
        )
        protocol, limit_s = self._protocol, self._limit_s(given, began_s)
        request.update(headers=self._headers(headers), **protocol.limit(limit_s))
        try:
            with self._converting_close_errors(), protocol.asyncio_limit(limit_s):
                result = await self._infer_client.infer(**request)
            return finish(tensors.arrays_in(result))
        except self._call_errors() as error:
            raise self._failure(error) from error

    def _call_errors(self) -> tuple[type[Exception], ...]:
        # Over gRPC, a ValueError means that protobuf refused an argument of the caller.
        return call_errors() if self._protocol is GRPC else call_errors(ValueError)


class AsyncioDecoupledModelClient(AsyncioModelClient):
    """Like `AsyncioModelClient`, but for decoupled models: `async for` over responses.

    It supports only gRPC. `inference_timeout_s` is the timeout of each response. Any number of
    inferences may be open at the same time, each in its own stream. Errors in the arguments of a
    request are raised when its iteration starts.

    Examples:
        >>> async with AsyncioDecoupledModelClient("grpc://localhost", "Chat") as client:
        ...     async for response in client.infer_sample(prompt):
        ...         print(response["text"])
    """

    _wants_decoupled_model = True

    def infer_sample(  # type: ignore[override]  # the public class derives from the other one
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> AsyncIterator[dict[str, Array]]:
        """Like `ModelClient.infer_sample`, but with any number of responses.

        Args:
            *inputs: inputs in the model's order.
            parameters: parameters of the request.
            headers: headers of the request.
            **named_inputs: inputs by name instead.

        Returns:
            An iterator over responses, each with the outputs by name; omitted outputs are
            None.

        Raises:
            PyTritonClientValueError: The address is not a gRPC address, or an argument is wrong.
            PyTritonClientInferenceServerError: The model is not decoupled, or the server answered
                with an error.
            PyTritonClientTimeoutError: No response arrived in time.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=False)

    def infer_batch(  # type: ignore[override]  # as above
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> AsyncIterator[dict[str, Array]]:
        """Like `infer_sample`, but each input and output has a leading batch dimension.

        Args:
            *inputs: inputs in the model's order.
            parameters: parameters of the request.
            headers: headers of the request.
            **named_inputs: inputs by name instead.

        Returns:
            An iterator over responses, each with the outputs by name; omitted outputs are
            None.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: The model has no batch dimension.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=True)

    async def _infer(  # type: ignore[override]  # as above
        self,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
        *,
        is_batch: bool,
    ) -> AsyncIterator[dict[str, Array]]:
        if self._url.scheme != "grpc":
            raise PyTritonClientValueError(
                f"{type(self).__name__} supports only grpc, got {self._url.with_scheme!r}"
            )
        self._check_arguments(inputs, named_inputs, parameters, headers)
        config = await self._ready_model_config()
        given, finish = self._prepare(config, inputs, named_inputs, is_batch=is_batch)
        request = official.suited(
            self._request(config, given, parameters), self._infer_client, self._protocol.scheme
        )
        names = [spec.name for spec in config.outputs or ()]
        stream = self._infer_client.stream_infer(_once(request), headers=self._headers(headers))
        try:
            while (result := await self._next_result(stream)) is not None:
                arrays = tensors.arrays_in(result)
                # An output that a response omits is None.
                yield finish({name: cast("Array", arrays.get(name)) for name in names})
        finally:
            if hasattr(stream, "cancel"):
                stream.cancel()
            else:  # older releases of the official client return a generator
                await stream.aclose()

    async def _next_result(self, stream: Any) -> Any:
        """Returns the next response, or None at the end of the stream."""
        import grpc  # noqa: PLC0415  already imported by the protocol in use

        try:
            with self._converting_close_errors(), AsyncioTimeLimit(self._inference_timeout_s):
                result, error = await anext(stream)
        except StopAsyncIteration:
            return None
        except asyncio.TimeoutError as timeout:
            raise PyTritonClientTimeoutError(
                f"Timeout while waiting for model {self._model_name} to answer: no response came "
                f"within {self._inference_timeout_s:g} s, nor the end of the stream"
            ) from timeout
        except grpc.RpcError as failure:
            raise PyTritonClientInferenceServerError(
                f"Error occurred during inference request. Message: {failure.details()}"
            ) from failure
        if error is not None:
            raise PyTritonClientInferenceServerError(
                f"Error occurred during inference request. Message: {error}"
            )
        return result


async def _once(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request
