# SPDX-License-Identifier: Apache-2.0
"""The gRPC methods that list, load and unload models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.protos import service_pb2
from pytriton.protocol.repository import (
    check_repository,
    read_unload_parameters,
)
from pytriton.serving.server.grpc.documents import respond_when_known

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pytriton.protocol.repository_pb import LoadRequest
    from pytriton.serving.engine.control import IndexEntry
    from pytriton.serving.server.api.repository_service import RepositoryService
    from pytriton.serving.server.grpc.documents import Method

_API = "model-repository"


class GrpcRepository:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(self, service: RepositoryService) -> None:
        self._service = service

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for each method, its group for authorisation and the function that answers."""
        return {
            "RepositoryIndex": (_API, self.index),
            "RepositoryModelLoad": (_API, self.load),
            "RepositoryModelUnload": (_API, self.unload),
        }

    def index(self, request: Any) -> Any:
        """List the models of the server, or only the ready ones if the client asks for these."""
        check_repository(request.repository_name)
        return respond_when_known(self._service.index(ready=request.ready), _index_response)

    def load(self, request: LoadRequest) -> Any:
        loading = self._service.load(request.model_name, request.overrides)
        return _respond_after(loading, service_pb2.RepositoryModelLoadResponse())

    def unload(self, request: Any) -> Any:
        check_repository(request.repository_name)
        unload_dependents = read_unload_parameters(request.parameters)
        unloading = self._service.unload(request.model_name, unload_dependents=unload_dependents)
        return _respond_after(unloading, service_pb2.RepositoryModelUnloadResponse())


def _index_response(entries: list[IndexEntry]) -> Any:
    response = service_pb2.RepositoryIndexResponse()
    for entry in entries:
        response.models.add(
            name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
        )
    return response


async def _respond_after(work: Coroutine[Any, Any, None], response: Any) -> Any:
    await work
    return response
