# SPDX-License-Identifier: Apache-2.0
"""Asks a server over gRPC: a channel with the calls of its service, and a client on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.address import Address, Tls
from pytriton.client.kserve.errors import ErrorWords, refusal
from pytriton.client.kserve.messages import (
    ASKS_FOR_FINAL,
    FINAL,
    SERVICE,
    answer_of,
    document_of,
    request_of,
)
from pytriton.client.kserve.records import LOAD_TIMEOUT_S, Document, ModelAnswer, ModelQuery

Metadata = tuple[tuple[str, str], ...]

# By default, a channel that lost its server waits up to two minutes before it reconnects.
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
        used_tls = (tls or Tls()) if address.uses_tls else None
        self._channel = GrpcChannel(grpc, address.host_and_port, used_tls)

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
        request = request_of(question)
        with self._errors():
            return answer_of(
                self._channel.call("ModelInfer", request, self._timeout_s, self._metadata)
            )

    def stream(self, question: ModelQuery) -> Iterator[ModelAnswer]:
        request = request_of(question)
        request.parameters[ASKS_FOR_FINAL].bool_param = True
        call = self._channel.stream(iter([request]), self._metadata)
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
        with self._errors():
            return self._channel.call(method, fields, timeout_s or self._timeout_s, self._metadata)

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


def _text_parameter(text: str) -> Any:
    return service_pb2.ModelRepositoryParameter(string_param=text)


class GrpcChannel:
    """A channel, which connects when it is first used.

    Args:
        library: `grpc` or `grpc.aio`, whose calls are awaited.
        place: host and port.
        tls: how connections are encrypted; None: they are not.

    Raises:
        OSError: A file of the TLS settings cannot be read.
    """

    def __init__(self, library: Any, place: str, tls: Tls | None) -> None:
        self._calls: dict[str, Any] = {}
        if tls is None:
            self._channel = library.insecure_channel(place, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(**tls.grpc_files())
            self._channel = library.secure_channel(place, credentials, _OPTIONS)

    def call(
        self, method: str, request: Any, timeout_s: float | None, metadata: Metadata | None
    ) -> Any:
        """Call a method that answers once; a request may be given by the fields of its message."""
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(
                f"{SERVICE}/{method}",
                request_serializer=getattr(service_pb2, f"{method}Request").SerializeToString,
                response_deserializer=getattr(service_pb2, f"{method}Response").FromString,
            )
        if isinstance(request, dict):
            request = getattr(service_pb2, f"{method}Request")(**request)
        return call(request, timeout=timeout_s, metadata=metadata)

    def stream(self, requests: Any, metadata: Metadata | None) -> Any:
        """Start a stream of requests for inference; returns an iterator that can be cancelled."""
        start = self._channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        return start(requests, metadata=metadata)

    def close(self) -> Any:
        return self._channel.close()
