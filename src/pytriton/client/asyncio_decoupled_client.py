# SPDX-License-Identifier: Apache-2.0
"""The asyncio client of decoupled models, which send any number of responses to a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.asyncio_connections import AsyncioTimeLimit
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.tensors import Array, Parameters


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
        request = self._request(config, given, parameters)
        names = [spec.name for spec in config.outputs or ()]
        stream = self._infer_client.stream_infer(_once(request), headers=self._headers(headers))
        try:
            while (result := await self._next_result(stream)) is not None:
                yield finish({name: result.as_numpy(name) for name in names})
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
