# SPDX-License-Identifier: Apache-2.0
"""The synchronous client of decoupled models, which send any number of responses to a request."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pytriton.base import dtypes
from pytriton.base.protos import service_pb2
from pytriton.client import tensors
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientValueError,
)
from pytriton.client.model_client import ModelClient
from pytriton.client.response_stream import DecoupledResponses, ResponseStream
from pytriton.client.tensors import Array, Parameters
from pytriton.model_config.triton_model_config import TritonModelConfig

logger = logging.getLogger(__name__)


class DecoupledModelClient(ModelClient):
    """Like `ModelClient`, but for decoupled models: an inference is an iterator over responses.

    It supports only gRPC, one inference at a time, and neither parameters nor headers.
    `inference_timeout_s` is the timeout of each response. If an iterator fails, is closed or is
    deleted, its request ends, and the client can be used again. An iterator that is not read at all
    is closed after that timeout.

    Examples:
        >>> with DecoupledModelClient("grpc://localhost", "Chat") as client:
        ...     for response in client.infer_sample(prompt):
        ...         print(response["text"])

    Raises:
        PyTritonClientValueError: The address is not a gRPC address.
    """

    _wants_decoupled_model = True
    _schemes = ("grpc",)
    _stream: ResponseStream | None = None

    def close(self) -> None:
        """Like `ModelClient.close`; an open stream is cancelled with a warning."""
        stream = self._stream
        if not self._closed and stream is not None and not stream.is_over:
            logger.warning("%r is closed while a stream is open: cancelling the stream", self)
            stream.close(PyTritonClientClosedError(f"{type(self).__name__} is closed"))
        super().close()

    def infer_sample(  # type: ignore[override]  # the public class derives from ModelClient
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> Iterator[dict[str, Array]]:
        """Like `ModelClient.infer_sample`, but with any number of responses.

        Args:
            *inputs: inputs in the model's order.
            parameters: has to be None.
            headers: has to be None.
            **named_inputs: inputs by name instead.

        Returns:
            An iterator over responses, each with the outputs by name.

        Raises:
            PyTritonClientInferenceServerError: The model is not decoupled, or the previous iterator
                was neither read to its end nor closed. From the iterator: the server answered with
                an error.
            PyTritonClientTimeoutError: From the iterator: no response arrived in time.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=False)

    def infer_batch(  # type: ignore[override]  # as above
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> Iterator[dict[str, Array]]:
        """Like `infer_sample`, but each input and output has a leading batch dimension.

        Args:
            *inputs: inputs in the model's order.
            parameters: has to be None.
            headers: has to be None.
            **named_inputs: inputs by name instead.

        Returns:
            An iterator over responses, each with the outputs by name.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: The model has no batch dimension.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=True)

    def _infer(  # type: ignore[override]  # as above
        self,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
        *,
        is_batch: bool,
    ) -> Iterator[dict[str, Array]]:
        self._check_arguments(inputs, named_inputs, parameters, headers)
        for kind, values in (("parameters", parameters), ("headers", headers)):
            if values is not None:
                raise PyTritonClientValueError(
                    f"{type(self).__name__} does not support {kind}: expected None, got {values!r}"
                )
        config = self._ready_model_config()
        began_s = time.monotonic()
        given, finish = self._prepare(config, inputs, named_inputs, is_batch=is_batch)
        return DecoupledResponses(
            self._start(self._message(config, given), began_s),
            lambda response: finish(tensors.arrays_in(self._library.InferResult(response))),
        )

    def _start(self, message: Any, began_s: float) -> ResponseStream:
        with self._init_lock, self._converting_close_errors():
            if self._stream is not None and self._stream.is_in_use():
                raise PyTritonClientInferenceServerError(
                    "Inference is already in progress: read all its responses, or close it, first"
                )
            # The official client has one stream for all requests, and a thread that outlives the
            # program. With one stream per request, each can be cancelled.
            call = self._infer_client._client_stub.ModelStreamInfer(  # noqa: SLF001
                iter((message,)), metadata=tuple((self._auth_headers or {}).items())
            )
            self._stream = ResponseStream(call, self._inference_timeout_s, began_s)
            return self._stream

    def _message(self, config: TritonModelConfig, inputs: Mapping[str, Array]) -> Any:
        message = service_pb2.ModelInferRequest(
            model_name=self._model_name,
            model_version=self._model_version or "",
            id=str(next(self._request_ids)),
        )
        for name, array in inputs.items():
            datatype = tensors.datatype_of(name, array)
            message.inputs.add(name=name, datatype=datatype, shape=array.shape)
            message.raw_input_contents.append(
                dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
                if datatype == "BYTES"
                else array.tobytes()
            )
        for spec in config.outputs or ():
            message.outputs.add(name=spec.name)
        return message
