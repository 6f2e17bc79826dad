# SPDX-License-Identifier: Apache-2.0
"""The ports of cloud providers in front of a real engine, without sockets."""

from __future__ import annotations

from pytriton.serving.server.api.services import ClientService as Provider
from pytriton.serving.server.cloud.apis import make_cloud_api
from pytriton.serving.server.options.endpoints import SageMakerOptions, VertexAiOptions
from tests.server.http_fakes import Answer, Client
from tests.server.http_models import Service

PREDICT, HEALTH = b"/predict", b"/health"
REDIRECT = b"X-Vertex-Ai-Triton-Redirect: "
VERTEX_AI = VertexAiOptions(predict_route="/predict", health_route="/health")


class CloudService(Service):
    """A server whose clients are those of a cloud provider."""

    def __init__(self, provider: Provider, **options) -> None:
        super().__init__(**options)
        self.cloud = make_cloud_api(provider, self.api, self.client, self.options)

    def connect(self) -> Client:
        return Client(self.cloud)


def vertex_ai(default_model: str | None = "double", **options) -> CloudService:
    settings = VertexAiOptions(
        predict_route=VERTEX_AI.predict_route,
        health_route=VERTEX_AI.health_route,
        default_model=default_model,
    )
    return CloudService(Provider.VERTEX_AI, vertex_ai_options=settings, **options)


def sagemaker(default_model: str = "double", **options) -> CloudService:
    settings = SageMakerOptions(
        default_model=default_model,
        ping_mode=options.pop("ping_mode", "ready"),
        inference_type=options.pop("inference_type", "infer"),
    )
    return CloudService(Provider.SAGEMAKER, sagemaker_options=settings, **options)


def request(method: bytes, path: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    lines = (b"%b %b HTTP/1.1" % (method, path), b"Host: h", *headers)
    return b"\r\n".join((*lines, b"Content-Length: %d" % len(body), b"", body))


def status_of(service: CloudService, data: bytes) -> int:
    """The status of the answer, also of one to HEAD; 0 while the model works."""
    client = service.connect()
    client.send(data)
    received = bytes(client.received)
    return int(received.split()[1]) if received else 0


def answered(service: CloudService, data: bytes, *outputs) -> Answer:
    """The answer to an inference that the model answers with these outputs."""
    client = service.connect()
    client.send(data)
    service.double.answer(*outputs)
    (answer,) = client.answers()
    return answer
