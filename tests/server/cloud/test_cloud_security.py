# SPDX-License-Identifier: Apache-2.0
"""Restricted APIs are restricted on the ports of cloud providers, too, on whatever way.

Every route of both providers is asked with every method and every state of the token, once for each
group that is restricted.
"""

from __future__ import annotations

import itertools

import pytest

from pytriton.base.security import VALID_TRITON_ENDPOINTS
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.http import routes
from pytriton.serving.server.operations.table import OPERATIONS
from tests.server.cloud_fakes import HEALTH, PREDICT, REDIRECT, request, sagemaker, vertex_ai
from tests.server.http_models import infer_body

METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH")
WRONG_TOKENS = (
    (),
    (b"Token:",),
    (b"Token: wrong",),
    (b"Token: SECRET",),
    (b"X-Token: secret",),
    (b"Token: secret", b"Token: secret"),
)
TOKEN = (b"token: secret",)

# Every path of the HTTP port, by its group.
REDIRECTS = {
    path: routes.resolve(b"/" + path)
    for path in (
        b"v2",
        b"v2/health/live",
        b"v2/health/ready",
        b"v2/logging",
        b"v2/trace/setting",
        b"v2/repository/index",
        b"v2/repository/models/double/load",
        b"v2/repository/models/double/unload",
        b"v2/models/stats",
        b"v2/recording",
        b"v2/recording/fetch",
        b"v2/recording/stop",
        b"v2/models/double/trace/setting",
        *(
            b"v2/models/double" + version + action
            for version in (b"", b"/versions/1")
            for action in (
                *(b"", b"/ready", b"/config", b"/stats"),
                *(b"/infer", b"/generate", b"/generate_stream"),
            )
        ),
        *(
            b"v2/%b/%b" % (kind, action)
            for kind in (b"systemsharedmemory", b"cudasharedmemory")
            for action in (b"status", b"region/r/register", b"region/r/unregister")
        ),
    )
}
VERTEX_AI_ROUTES = {
    (HEALTH, ()): "health",
    (PREDICT, ()): "inference",
    (PREDICT, (REDIRECT + b"metrics",)): "statistics",
    **{(PREDICT, (REDIRECT + path,)): route.endpoint.api for path, route in REDIRECTS.items()},
}
SAGEMAKER_ROUTES = {
    (b"/ping", ()): "health",
    (b"/invocations", ()): "inference",
    (b"/models", ()): "model-repository",
    (b"/models/double", ()): "model-repository",
    (b"/models/double/invoke", ()): "inference",
}
PROVIDERS = {"vertex_ai": (vertex_ai, VERTEX_AI_ROUTES), "sagemaker": (sagemaker, SAGEMAKER_ROUTES)}


def restricted(api: str) -> tuple[RestrictedGroup, ...]:
    return (RestrictedGroup(apis=(api,), header="Token", value="secret"),)


def passes(service, method, path, headers, body) -> bool:
    """Whether a request gets past authorisation, also if it asks for something wrong."""
    before = len(service.double.inferences)
    client = service.connect()
    client.send(request(method, path, *headers, body=body))
    status = bytes(client.received).split()[1:2]
    if len(service.double.inferences) > before:
        return True
    return status not in ([b"403"], [b"404"], [b"405"])


def test_every_endpoint_of_the_http_port_is_among_the_redirects():
    known = {route.endpoint.handler for route in REDIRECTS.values()}

    assert known == routes.INFERENCES | {each.name for each in OPERATIONS if each.http is not None}


@pytest.mark.parametrize("api", sorted(VALID_TRITON_ENDPOINTS))
@pytest.mark.parametrize("provider", PROVIDERS)
def test_restricted_group_is_closed_without_its_token(provider, api):
    make, table = PROVIDERS[provider]
    service = make(http_restricted=restricted(api))
    for (path, headers), group in table.items():
        for method, token, body in itertools.product(METHODS, WRONG_TOKENS, (b"", infer_body(1))):
            if group == api:
                asked = (method, path, headers, token)
                assert not passes(service, method, path, (*headers, *token), body), asked
    assert service.double.inferences == []


@pytest.mark.parametrize("api", sorted(VALID_TRITON_ENDPOINTS))
@pytest.mark.parametrize("provider", PROVIDERS)
def test_token_changes_nothing_but_permission(provider, api):
    make, table = PROVIDERS[provider]
    closed, opened = make(http_restricted=restricted(api)), make()
    for (path, headers), group in table.items():
        for method, body in itertools.product(METHODS, (b"", infer_body(1))):
            with_token = passes(closed, method, path, (*headers, *TOKEN), body)
            assert with_token == passes(opened, method, path, headers, body), (path, headers)
            if group != api:
                without = passes(closed, method, path, headers, body)
                assert without == with_token, (method, path, headers)


def test_large_body_takes_the_models_memory_only_with_permission():
    service = vertex_ai(http_restricted=restricted("inference"))
    asked = []
    service.engine.lookup("double").body_memory = lambda size, header: asked.append((size, header))
    line = b"Content-Type: application/vnd.vertex-ai-triton.binary+json;json-header-size=100"
    for token in (b"Token: wrong", b"Token: secret"):
        service.connect().send(request(b"POST", PREDICT, line, token, body=bytes(100_000)))

    assert asked == [(100_000, 100)]
