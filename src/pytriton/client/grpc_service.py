# SPDX-License-Identifier: Apache-2.0
"""A server as our clients ask it over gRPC, synchronously and with asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.address import Tls
from pytriton.client.kserve.grpc_client import GrpcChannel, Metadata
from pytriton.client.kserve.messages import answer_of, document_of, request_of
from pytriton.client.service import ServiceError, arrays_of, query_of
from pytriton.client.tensors import Array

if TYPE_CHECKING:
    from typing_extensions import Self

Headers = Mapping[str, str] | None


class _GrpcMethods:
    """The methods; each returns what `_ask` does, for asyncio something to await.

    `how` are the headers of a call and `client_timeout`, its timeout.
    """

    _ask: Callable[..., Any]  # of a method, its request and what reads the answer

    def __init__(self, channel: GrpcChannel, address: str) -> None:
        self._channel = channel
        self._pytriton_address = address

    def is_server_live(self, **how: Any) -> Any:
        return self._ask(_is_live, "ServerLive", {}, **how)

    def is_server_ready(self, **how: Any) -> Any:
        return self._ask(_is_ready, "ServerReady", {}, **how)

    def is_model_ready(self, model_name: str, model_version: str = "", **how: Any) -> Any:
        fields = {"name": model_name, "version": model_version}
        return self._ask(_is_ready, "ModelReady", fields, **how)

    def get_model_config(
        self, model_name: str, model_version: str = "", *, as_json: bool = True, **how: Any
    ) -> Any:
        """Ask for a configuration, which is always what `as_json` asks for."""
        fields = {"name": model_name, "version": model_version}
        return self._ask(document_of, "ModelConfig", fields, **how)

    def get_model_repository_index(self, **how: Any) -> Any:
        return self._ask(_models, "RepositoryIndex", {}, **how)

    def load_model(
        self,
        model_name: str,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        **how: Any,
    ) -> Any:
        parameter = service_pb2.ModelRepositoryParameter
        parameters = {} if config is None else {"config": parameter(string_param=config)}
        for path, content in (files or {}).items():
            parameters[path] = parameter(bytes_param=content)
        fields = {"model_name": model_name, "parameters": parameters}
        return self._ask(_nothing, "RepositoryModelLoad", fields, **how)

    def unload_model(self, model_name: str, **how: Any) -> Any:
        stays = service_pb2.ModelRepositoryParameter(bool_param=False)
        fields = {"model_name": model_name, "parameters": {"unload_dependents": stays}}
        return self._ask(_nothing, "RepositoryModelUnload", fields, **how)

    def infer(
        self, *, headers: Headers = None, client_timeout: float | None = None, **request: Any
    ) -> Any:
        """Ask for an inference; the request has the arguments of `query_of`."""
        return self._ask(arrays_in, "ModelInfer", message_of(request), headers, client_timeout)


class GrpcService(_GrpcMethods):
    """A server over gRPC.

    Args:
        place: host and port.
        tls: how connections are encrypted; None: they are not.
        address: the server's for messages.
    """

    def __init__(self, place: str, tls: Tls | None, address: str) -> None:
        super().__init__(GrpcChannel(grpc, place, tls), address)

    def stream(self, message: Any, headers: Headers = None) -> Any:
        """Returns a call with a request: an iterator over messages that can be cancelled."""
        return self._channel.stream(iter((message,)), _metadata(headers))

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        read: Callable[[Any], Any],
        method: str,
        request: Any,
        headers: Headers = None,
        client_timeout: float | None = None,
    ) -> Any:
        try:
            return read(self._channel.call(method, request, client_timeout, _metadata(headers)))
        except grpc.RpcError as error:
            raise _error_of(error) from error


class AsyncioGrpcService(_GrpcMethods):
    """The same for asyncio."""

    def __init__(self, place: str, tls: Tls | None, address: str) -> None:
        super().__init__(GrpcChannel(grpc.aio, place, tls), address)

    def stream_infer(
        self, requests: AsyncIterator[Mapping[str, Any]], headers: Headers = None
    ) -> Responses:
        """Returns the responses to requests."""

        async def messages() -> AsyncIterator[Any]:
            async for request in requests:
                yield message_of(request)

        return Responses(self._channel.stream(messages(), _metadata(headers)))

    async def close(self) -> None:
        await self._channel.close()

    async def _ask(
        self,
        read: Callable[[Any], Any],
        method: str,
        request: Any,
        headers: Headers = None,
        client_timeout: float | None = None,
    ) -> Any:
        try:
            answer = self._channel.call(method, request, client_timeout, _metadata(headers))
            return read(await answer)
        except grpc.RpcError as error:
            raise _error_of(error) from error


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


def _metadata(headers: Headers) -> Metadata | None:
    return tuple(headers.items()) if headers else None


def _error_of(error: Any) -> ServiceError:
    return ServiceError(error.details() or "", str(error.code()))


def _models(answer: Any) -> list[dict[str, Any]]:
    return [document_of(model) for model in answer.models]


def _is_live(answer: Any) -> bool:
    return bool(answer.live)


def _is_ready(answer: Any) -> bool:
    return bool(answer.ready)


def _nothing(_: Any) -> None:
    return None
