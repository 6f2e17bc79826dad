# SPDX-License-Identifier: Apache-2.0
"""The asyncio client of decoupled models, which answer a request any number of times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pytriton.client import tensors
from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.tensors import Array, Parameters
from pytriton.model_config.triton_model_config import TritonModelConfig


class AsyncioDecoupledModelClient(AsyncioModelClient):
    """Like `AsyncioModelClient`, but for decoupled models: `async for` over responses.

    It speaks gRPC only. `inference_timeout_s` is the time allowed for each response. Any number of
    inferences may go on at a time, each in a stream of its own. What is wrong with a request is
    raised when its iteration begins.

    Example:
        >>> async with AsyncioDecoupledModelClient("grpc://localhost", "Chat") as client:
        ...     async for response in client.infer_sample(prompt):
        ...         print(response["text"])
    """

    _wants_decoupled_model = True

    async def infer_sample(  # type: ignore[override]  # the class users know derives from the other
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

        Yields:
            The outputs of a response by name; None for those that it leaves out.

        Raises:
            PyTritonClientValueError: The address is not one of gRPC, or an argument is wrong.
            PyTritonClientInferenceServerError: The model is not decoupled, or the server answered
                with an error.
            PyTritonClientTimeoutError: No response came in time.
        """
        config = await self._prepare(inputs, named_inputs, parameters, headers, is_batch=False)
        given = tensors.name_inputs(config, inputs, named_inputs)
        if not config.max_batch_size:
            async for response in self._responses(config, given, parameters, headers):
                yield response
            return
        batch = tensors.add_batch_axis(given)
        async for response in self._responses(config, batch, parameters, headers):
            yield tensors.remove_batch_axis(response)

    async def infer_batch(  # type: ignore[override]  # as above
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

        Yields:
            The outputs of a response by name; None for those that it leaves out.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: The model has no batch dimension.
        """
        config = await self._prepare(inputs, named_inputs, parameters, headers, is_batch=True)
        given = tensors.name_inputs(config, inputs, named_inputs)
        async for response in self._responses(config, given, parameters, headers):
            yield response

    async def _prepare(
        self,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
        *,
        is_batch: bool,
    ) -> TritonModelConfig:
        if self._url.scheme != "grpc":
            raise PyTritonClientValueError(
                f"{type(self).__name__} supports only grpc, got {self._url.with_scheme!r}"
            )
        self._check_arguments(inputs, named_inputs, parameters, headers)
        config = await self._ready_model_config()
        self._check_model(config, is_batch=is_batch)
        return config

    async def _responses(
        self,
        config: TritonModelConfig,
        inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
    ) -> AsyncIterator[dict[str, Array]]:
        request = self._request(config, inputs, parameters)
        stream = self._infer_client.stream_infer(_once(request), headers=self._headers(headers))
        try:
            while True:
                result = await self._next_result(stream)
                if result is None:
                    return
                names = [spec.name for spec in config.outputs or ()]
                yield {name: result.as_numpy(name) for name in names}
        finally:
            stream.cancel()

    async def _next_result(self, stream: Any) -> Any:
        """The next response; None at the end of the stream."""
        import grpc  # noqa: PLC0415  loaded already by the protocol in use

        try:
            result, error = await asyncio.wait_for(anext(stream), self._inference_timeout_s)
        except StopAsyncIteration:
            return None
        except asyncio.TimeoutError as timeout:
            raise PyTritonClientTimeoutError(
                "Expected a response or the end of the stream within "
                f"{self._inference_timeout_s:g} s, got none"
            ) from timeout
        except grpc.RpcError as failure:
            raise PyTritonClientInferenceServerError(
                f"Error occurred during inference request. Message: {failure.details()}"
            ) from failure
        if error is not None:
            raise PyTritonClientInferenceServerError(
                f"Error occurred during inference request. Message: {error.message()}"
            )
        return result


async def _once(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request
