# SPDX-License-Identifier: Apache-2.0
"""Asks a server over gRPC; streams are those of `ModelStreamInfer`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.address import Address, Tls
from pytriton.client.kserve.errors import ErrorWords, refusal
from pytriton.client.kserve.messages import (
    ASKS_FOR_FINAL,
    FINAL,
    SERVICE,
    infer_message,
    outputs_of_message,
)
from pytriton.client.kserve.records import (
    LOAD_TIMEOUT_S,
    Document,
    ModelAnswer,
    ModelQuery,
    PlainTensor,
)

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class KserveGrpcClient:
    """A server at a gRPC address.

    Args:
        address: where it listens.
        headers: sent with every call.
        timeout_s: for each call, and for each response of a stream.
        tls: settings of encrypted connections; None for the defaults.
        words: makes the errors.
    """

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str],
        timeout_s: float,
        tls: Tls | None = None,
        words: ErrorWords | None = None,
    ) -> None:
        self._address = address
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._timeout_s = timeout_s
        self._words = words or ErrorWords()
        if address.uses_tls:
            credentials = grpc.ssl_channel_credentials(**(tls or Tls()).grpc_files())
            self._channel = grpc.secure_channel(address.host_and_port, credentials, _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.host_and_port, _OPTIONS)

    def server_metadata(self) -> Document:
        return document_of(self._call("ServerMetadata"))

    def is_model_ready(self, model: str, version: str) -> bool:
        return bool(self._call("ModelReady", name=model, version=version).ready)

    def model_metadata(self, model: str, version: str = "") -> Document:
        return document_of(self._call("ModelMetadata", name=model, version=version))

    def model_config(self, model: str, version: str = "") -> Document:
        return document_of(self._call("ModelConfig", name=model, version=version).config)

    def index(self) -> list[Document]:
        return [document_of(model) for model in self._call("RepositoryIndex").models]

    def statistics(self, model: str = "", version: str = "") -> list[Document]:
        answer = self._call("ModelStatistics", name=model, version=version)
        return [document_of(each) for each in answer.model_stats]

    def load(self, model: str, config: str | None = None) -> None:
        parameters = {} if config is None else {"config": _text_parameter(config)}
        self._call("RepositoryModelLoad", LOAD_TIMEOUT_S, model_name=model, parameters=parameters)

    def unload(self, model: str) -> None:
        self._call("RepositoryModelUnload", LOAD_TIMEOUT_S, model_name=model)

    def update_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        value = service_pb2.TraceSettingRequest.SettingValue
        self._call(
            "TraceSetting",
            settings={name: value(value=values) for name, values in settings.items()},
        )

    def register_memory(self, region: str, key: str, byte_size: int) -> None:
        self._call("SystemSharedMemoryRegister", name=region, key=key, byte_size=byte_size)

    def unregister_memory(self, region: str) -> None:
        self._call("SystemSharedMemoryUnregister", name=region)

    def register_device_memory(
        self, region: str, handle: bytes, device: int, byte_size: int
    ) -> None:
        self._call(
            "CudaSharedMemoryRegister",
            name=region,
            raw_handle=handle,
            device_id=device,
            byte_size=byte_size,
        )

    def unregister_device_memory(self, region: str) -> None:
        self._call("CudaSharedMemoryUnregister", name=region)

    def infer(self, question: ModelQuery) -> ModelAnswer:
        call = self._channel.unary_unary(
            f"{SERVICE}/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        with self._errors():
            response = call(request_of(question), timeout=self._timeout_s, metadata=self._metadata)
        return answer_of(response)

    def stream(self, question: ModelQuery) -> Iterator[ModelAnswer]:
        request = request_of(question)
        request.parameters[ASKS_FOR_FINAL].bool_param = True
        start = self._channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        call = start(iter([request]), metadata=self._metadata)
        patience = _Patience(self._timeout_s, call.cancel)
        try:
            with self._errors():
                for response in patience.each(call):
                    if response.error_message:
                        raise refusal(response.error_message)
                    answer = response.infer_response
                    is_final = answer.parameters[FINAL].bool_param
                    if answer.outputs or not is_final:
                        yield answer_of(answer)
                    if is_final:
                        return
        finally:
            call.cancel()

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, timeout_s: float | None = None, /, **fields: Any) -> Any:
        request = getattr(service_pb2, f"{method}Request")
        response = getattr(service_pb2, f"{method}Response")
        call = self._channel.unary_unary(
            f"{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        with self._errors():
            return call(
                request(**fields), timeout=timeout_s or self._timeout_s, metadata=self._metadata
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn grpc's errors into ours."""
        try:
            yield
        except _ImpatienceError as error:
            raise self._failed("DEADLINE_EXCEEDED", "") from error
        except grpc.RpcError as error:
            raise self._failed(error.code().name, error.details() or "") from error

    def _failed(self, code: str, details: str) -> Exception:
        return self._words.call_failed(self._address, code, details, self._timeout_s)


class _ImpatienceError(Exception):
    """A response of a stream did not come in time."""


class _Patience:
    """Cancels a stream if the next response takes too long; grpc limits only the whole stream."""

    def __init__(self, timeout_s: float, cancel: Callable[[], Any]) -> None:
        self._timeout_s = timeout_s
        self._cancel = cancel
        self._is_over = False

    def each(self, responses: Iterator[Any]) -> Iterator[Any]:
        while True:
            timer = threading.Timer(self._timeout_s, self._give_up)
            timer.daemon = True
            timer.start()
            try:
                response = next(responses)
            except StopIteration:
                return
            except grpc.RpcError as error:
                if self._is_over:
                    raise _ImpatienceError from error
                raise
            finally:
                timer.cancel()
            yield response

    def _give_up(self) -> None:
        self._is_over = True
        self._cancel()


def request_of(question: ModelQuery) -> Any:
    """Returns the message of a request for inference."""
    tensors = [PlainTensor.of(each) for each in question.inputs]
    request = infer_message(
        question.model, question.version, question.parameters, tensors, question.outputs
    )
    request.id = question.request_id
    return request


def answer_of(response: Any) -> ModelAnswer:
    """Returns what a message with an answer says."""
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
        if value.WhichOneof("parameter_choice") and name != FINAL
    }
    outputs = tuple(tensor.named() for tensor in outputs_of_message(response))
    return ModelAnswer(
        response.model_name, response.model_version, response.id, parameters, outputs
    )


def _text_parameter(text: str) -> Any:
    return service_pb2.ModelRepositoryParameter(string_param=text)


def document_of(message: Message) -> dict[str, Any]:
    """Returns the fields of a message that are set, as a server's JSON has them."""
    document: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            document[field.name] = {key: _plain(field, value[key]) for key in value}
        elif isinstance(value, str | bytes) or not hasattr(value, "__len__"):
            document[field.name] = _plain(field, value)
        else:
            document[field.name] = [_plain(field, each) for each in value]
    return document


def _plain(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return document_of(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
