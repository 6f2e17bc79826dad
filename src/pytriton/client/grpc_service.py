# SPDX-License-Identifier: Apache-2.0
"""A server as our clients ask it over gRPC, synchronously and with asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.address import Tls
from pytriton.client.kserve.channel import open_channel, stream_of, unary_of
from pytriton.client.kserve.messages import answer_of, document_of, request_of
from pytriton.client.service import ServiceError, arrays_of, query_of
from pytriton.client.tensors import Array

if TYPE_CHECKING:
    from typing_extensions import Self

Headers = Mapping[str, str] | None
Limit = float | None


class _Methods:
    """The methods; each returns what `_ask` does, for asyncio something to await."""

    def __init__(self, channel: Any, address: str) -> None:
        self._channel = channel
        self._pytriton_address = address
        self._calls: dict[str, Any] = {}

    def is_server_live(self, headers: Headers = None, client_timeout: Limit = None) -> Any:
        return self._ask("ServerLive", {}, lambda answer: answer.live, headers, client_timeout)

    def is_server_ready(self, headers: Headers = None, client_timeout: Limit = None) -> Any:
        return self._ask("ServerReady", {}, _is_ready, headers, client_timeout)

    def is_model_ready(
        self,
        model_name: str,
        model_version: str = "",
        headers: Headers = None,
        client_timeout: Limit = None,
    ) -> Any:
        fields = {"name": model_name, "version": model_version}
        return self._ask("ModelReady", fields, _is_ready, headers, client_timeout)

    def get_model_config(
        self,
        model_name: str,
        model_version: str = "",
        headers: Headers = None,
        client_timeout: Limit = None,
        as_json: bool = True,  # as it always is
    ) -> Any:
        fields = {"name": model_name, "version": model_version}
        return self._ask("ModelConfig", fields, document_of, headers, client_timeout)

    def get_model_repository_index(
        self, headers: Headers = None, client_timeout: Limit = None
    ) -> Any:
        return self._ask("RepositoryIndex", {}, _models, headers, client_timeout)

    def load_model(
        self,
        model_name: str,
        headers: Headers = None,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        client_timeout: Limit = None,
    ) -> Any:
        parameter = service_pb2.ModelRepositoryParameter
        parameters = {} if config is None else {"config": parameter(string_param=config)}
        for path, content in (files or {}).items():
            parameters[path] = parameter(bytes_param=content)
        fields = {"model_name": model_name, "parameters": parameters}
        return self._ask("RepositoryModelLoad", fields, _nothing, headers, client_timeout)

    def unload_model(
        self, model_name: str, headers: Headers = None, client_timeout: Limit = None
    ) -> Any:
        stays = service_pb2.ModelRepositoryParameter(bool_param=False)
        fields = {"model_name": model_name, "parameters": {"unload_dependents": stays}}
        return self._ask("RepositoryModelUnload", fields, _nothing, headers, client_timeout)

    def infer(
        self, *, headers: Headers = None, client_timeout: Limit = None, **request: Any
    ) -> Any:
        """Ask for an inference; the request has the arguments of `query_of`."""
        return self._ask("ModelInfer", message_of(request), arrays_in, headers, client_timeout)

    def _call(self, method: str) -> Any:
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = unary_of(self._channel, method)
        return call

    def _ask(
        self,
        method: str,
        request: Any,
        read: Callable[[Any], Any],
        headers: Headers,
        timeout_s: Limit,
    ) -> Any:
        raise NotImplementedError


class GrpcService(_Methods):
    """A server over gRPC.

    Args:
        place: host and port.
        tls: how connections are encrypted; None: they are not.
        address: the server's for messages.
    """

    def __init__(self, place: str, tls: Tls | None, address: str) -> None:
        super().__init__(open_channel(grpc, place, tls), address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(self, message: Any, headers: Headers = None) -> Any:
        """Returns a call with a request: an iterator over messages that can be cancelled."""
        return stream_of(self._channel)(iter((message,)), metadata=_metadata(headers))

    def close(self) -> None:
        self._channel.close()

    def _ask(
        self,
        method: str,
        request: Any,
        read: Callable[[Any], Any],
        headers: Headers,
        timeout_s: Limit,
    ) -> Any:
        try:
            answer = self._call(method)(
                _message(method, request), timeout=timeout_s, metadata=_metadata(headers)
            )
        except grpc.RpcError as error:
            raise _error_of(error) from error
        return read(answer)


class AsyncioGrpcService(_Methods):
    """The same for asyncio."""

    def __init__(self, place: str, tls: Tls | None, address: str) -> None:
        super().__init__(open_channel(grpc.aio, place, tls), address)

    def stream_infer(
        self, requests: AsyncIterator[Mapping[str, Any]], headers: Headers = None
    ) -> Responses:
        """Returns the responses to requests."""

        async def messages() -> AsyncIterator[Any]:
            async for request in requests:
                yield message_of(request)

        return Responses(stream_of(self._channel)(messages(), metadata=_metadata(headers)))

    async def close(self) -> None:
        await self._channel.close()

    async def _ask(
        self,
        method: str,
        request: Any,
        read: Callable[[Any], Any],
        headers: Headers,
        timeout_s: Limit,
    ) -> Any:
        try:
            answer = await self._call(method)(
                _message(method, request), timeout=timeout_s, metadata=_metadata(headers)
            )
        except grpc.RpcError as error:
            raise _error_of(error) from error
        return read(answer)


class Responses:
    """Yields the arrays and the error of each response, one of which is None."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[dict[str, Array] | None, ServiceError | None]:
        response = await anext(aiter(self._call))
        if response.error_message:
            return None, ServiceError(response.error_message)
        return arrays_in(response.infer_response), None

    def cancel(self) -> None:
        self._call.cancel()


def message_of(request: Mapping[str, Any]) -> Any:
    """Returns the message of a request for inference, which has the arguments of `query_of`."""
    return request_of(query_of(**request))


def arrays_in(response: Any) -> dict[str, Array]:
    """Returns the outputs of a response by name."""
    return arrays_of(answer_of(response))


def _message(method: str, request: Any) -> Any:
    """Returns the message of a call, which may be given by its fields."""
    if isinstance(request, dict):
        return getattr(service_pb2, f"{method}Request")(**request)
    return request


def _metadata(headers: Headers) -> tuple[tuple[str, str], ...] | None:
    return tuple(headers.items()) if headers else None


def _error_of(error: Any) -> ServiceError:
    return ServiceError(error.details() or "", str(error.code()))


def _models(answer: Any) -> list[dict[str, Any]]:
    return [document_of(model) for model in answer.models]


def _is_ready(answer: Any) -> bool:
    return bool(answer.ready)


def _nothing(_: Any) -> None:
    return None
