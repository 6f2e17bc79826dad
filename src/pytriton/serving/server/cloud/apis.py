# SPDX-License-Identifier: Apache-2.0
"""Makes the port of each cloud provider out of its routes and the endpoints that only it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.cloud import sagemaker, vertex_ai
from pytriton.serving.server.cloud.api import CloudApi
from pytriton.serving.server.cloud.sagemaker import SageMakerModels

if TYPE_CHECKING:
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.request import HttpRequest
    from pytriton.serving.server.http.routes import Route
    from pytriton.serving.server.options.server_options import ServerOptions

_METRICS_TYPE = b"text/plain; charset=utf-8"


def make_cloud_api(
    service: ClientService, api: HttpApi, engine: EngineClient, options: ServerOptions
) -> CloudApi:
    """Returns what answers the requests of a cloud provider."""
    if service is ClientService.SAGEMAKER:
        models = SageMakerModels(api, engine)
        return CloudApi(
            api,
            options.origin_policy(options.sagemaker.address),
            sagemaker.SageMakerRoutes(options.sagemaker_options),
            sagemaker.BINARY_TYPE,
            {"models": models.models, "model": models.model},
            sagemaker.SageMakerConnection,
            sagemaker.SageMakerStream,
        )
    assert service is ClientService.VERTEX_AI, service
    metrics = VertexAiMetrics(api, engine, is_allowed=options.metrics.allow)
    routes = vertex_ai.VertexAiRoutes(options.vertex_ai_options, engine.ready_models)
    origins = options.origin_policy(options.vertex_ai.address)
    return CloudApi(api, origins, routes, vertex_ai.BINARY_TYPE, {"metrics": metrics.answer})


class VertexAiMetrics:
    """The metrics for clients that only reach the port of Vertex AI."""

    def __init__(self, api: HttpApi, engine: EngineClient, *, is_allowed: bool) -> None:
        self._api = api
        self._engine = engine
        self._is_allowed = is_allowed

    def answer(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Respond with the page of the metrics port, if the server has one."""

        def respond(page: bytes) -> None:
            connection.respond(200, (page,), _METRICS_TYPE)

        if not self._is_allowed:
            connection.respond_error(404, "Not Found")
            return None
        return self._api.management.respond_when_known(
            connection, self._engine.ask(LocalClient.metrics_page), respond
        )
