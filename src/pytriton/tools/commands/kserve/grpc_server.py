# SPDX-License-Identifier: Apache-2.0
"""Asks a server over gRPC; streams are those of `ModelStreamInfer`."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from pytriton.base.protos import service_pb2
from pytriton.protocol.kserve_pb import set_parameter
from pytriton.tools.commands.kserve.address import Address
from pytriton.tools.commands.kserve.errors import AskError, NoServerError, refusal
from pytriton.tools.commands.kserve.records import (
    Answer,
    Document,
    NamedArray,
    Question,
    array_of_elements,
    array_of_raw,
    raw_bytes,
)

_SERVICE = "/inference.GRPCInferenceService/"
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_FINAL = "triton_final_response"
_ASKS_FOR_FINAL = "triton_enable_empty_final_response"


class GrpcServer:
    """A server at a gRPC address.

    Args:
        address: where it listens.
        headers: sent with every call.
        timeout_s: for each call, and for each response of a stream.
        ca_file: certificates to trust, for TLS; None for those of the system.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], timeout_s: float, ca_file: str | None
    ) -> None:
        self._address = address
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._timeout_s = timeout_s
        if address.uses_tls:
            roots = pathlib.Path(ca_file).read_bytes() if ca_file else None
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            self._channel = grpc.secure_channel(address.host_and_port, credentials, _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.host_and_port, _OPTIONS)

    def server_metadata(self) -> Document:
        return document_of(self._call("ServerMetadata"))

    def is_model_ready(self, model: str, version: str) -> bool:
        return bool(self._call("ModelReady", name=model, version=version).ready)

    def model_metadata(self, model: str, version: str) -> Document:
        return document_of(self._call("ModelMetadata", name=model, version=version))

    def model_config(self, model: str, version: str) -> Document:
        return document_of(self._call("ModelConfig", name=model, version=version).config)

    def index(self) -> list[Document]:
        return [document_of(model) for model in self._call("RepositoryIndex").models]

    def statistics(self) -> list[Document]:
        return [document_of(model) for model in self._call("ModelStatistics").model_stats]

    def infer(self, question: Question) -> Answer:
        call = self._channel.unary_unary(
            f"{_SERVICE}ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        with self._errors():
            response = call(request_of(question), timeout=self._timeout_s, metadata=self._metadata)
        return answer_of(response)

    def stream(self, question: Question) -> Iterator[Answer]:
        request = request_of(question)
        request.parameters[_ASKS_FOR_FINAL].bool_param = True
        start = self._channel.stream_stream(
            f"{_SERVICE}ModelStreamInfer",
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
                    is_final = answer.parameters[_FINAL].bool_param
                    if answer.outputs or not is_final:
                        yield answer_of(answer)
                    if is_final:
                        return
        finally:
            call.cancel()

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, **fields: str) -> Any:
        request = getattr(service_pb2, f"{method}Request")
        response = getattr(service_pb2, f"{method}Response")
        call = self._channel.unary_unary(
            f"{_SERVICE}{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        with self._errors():
            return call(request(**fields), timeout=self._timeout_s, metadata=self._metadata)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn grpc's errors into ours."""
        try:
            yield
        except _ImpatienceError as error:
            raise self._error_of(grpc.StatusCode.DEADLINE_EXCEEDED, "") from error
        except grpc.RpcError as error:
            raise self._error_of(error.code(), error.details() or "") from error

    def _error_of(self, code: grpc.StatusCode, details: str) -> AskError:
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return NoServerError(f"{self._address} gave no answer in {self._timeout_s:g} seconds.")
        if code is grpc.StatusCode.UNAVAILABLE and "restricted" not in details:
            return self._absent(details)
        return refusal(details or f"gRPC status {code.name}")

    def _absent(self, details: str) -> AskError:
        """Returns what grpc says about a server that it does not reach, in fewer words."""
        lower = details.lower()
        if "http1" in lower:
            return NoServerError(f"{self._address} does not speak gRPC; is it the port for HTTP?")
        if "certificate_verify_failed" in lower:
            return NoServerError(
                f"{self._address} was not asked: its certificate is not trusted; --ca-file names "
                "one to trust."
            )
        if "wrong_version_number" in lower:
            return NoServerError(f"{self._address} does not speak TLS; is it an address for grpc?")
        if "refused" in lower:
            reason = "the connection was refused"
        elif "resol" in lower or "domain name" in lower:
            reason = f"the name {self._address.host} is not known"
        elif "connect" in lower or "handshak" in lower or "socket" in lower:
            reason = details.rpartition("last error: ")[2]
        else:
            return refusal(details)
        return NoServerError(f"No server answers at {self._address}: {reason}.")


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


def request_of(question: Question) -> Any:
    """Returns the message of a request for inference."""
    request = service_pb2.ModelInferRequest(
        model_name=question.model, model_version=question.version, id=question.request_id
    )
    for name, value in question.parameters.items():
        set_parameter(request.parameters[name], value)
    for tensor in question.inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        request.raw_input_contents.append(raw_bytes(tensor))
    for name in question.outputs:
        request.outputs.add(name=name)
    return request


def answer_of(response: Any) -> Answer:
    """Returns what a message with an answer says."""
    outputs = []
    for number, output in enumerate(response.outputs):
        shape = tuple(output.shape)
        if response.raw_output_contents:
            array = array_of_raw(response.raw_output_contents[number], output.datatype, shape)
        else:
            # A server may send typed values instead; one field has them.
            fields = output.contents.ListFields()
            array = array_of_elements(fields[0][1] if fields else [], output.datatype, shape)
        outputs.append(NamedArray(output.name, output.datatype, array))
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
        if value.WhichOneof("parameter_choice") and name != _FINAL
    }
    return Answer(
        response.model_name, response.model_version, response.id, parameters, tuple(outputs)
    )


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
