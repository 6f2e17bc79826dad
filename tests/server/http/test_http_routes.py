# SPDX-License-Identifier: Apache-2.0
"""Which paths name a route, and that no other spelling of a path gets around its authorisation."""

from __future__ import annotations

import pytest

from pytriton.serving.server.http.routes import (
    MAX_CACHED_TARGET_BYTES,
    MAX_CACHED_TARGETS,
    Router,
    resolve,
)


@pytest.mark.parametrize(
    "target,handler,api,model,version",
    [
        (b"/v2", "server_metadata", "metadata", "", ""),
        (b"/v2?verbose=1", "server_metadata", "metadata", "", ""),
        (b"/v2/health/live", "live", "health", "", ""),
        (b"/v2/health/ready", "ready", "health", "", ""),
        (b"/v2/models/stats", "model_statistics", "statistics", "", ""),
        (b"/v2/models/m", "model_metadata", "metadata", "m", ""),
        (b"/v2/models/m/versions/3", "model_metadata", "metadata", "m", "3"),
        (b"/v2/models/m/ready", "model_ready", "health", "m", ""),
        (b"/v2/models/m/versions/3/ready", "model_ready", "health", "m", "3"),
        (b"/v2/models/m/config", "model_config", "model-config", "m", ""),
        (b"/v2/models/m/versions/3/config", "model_config", "model-config", "m", "3"),
        (b"/v2/models/m/stats", "model_statistics", "statistics", "m", ""),
        (b"/v2/models/m/versions/3/stats", "model_statistics", "statistics", "m", "3"),
        (b"/v2/trace/setting", "trace_setting", "trace", "", ""),
        (b"/v2/models/m/trace/setting", "trace_setting", "trace", "m", ""),
        (b"/v2/models/m/infer", "infer", "inference", "m", ""),
        (b"/v2/models/m/versions/3/infer", "infer", "inference", "m", "3"),
        (b"/v2/models/m/generate", "generate", "inference", "m", ""),
        (b"/v2/models/m/versions/3/generate", "generate", "inference", "m", "3"),
        (b"/v2/models/m/generate_stream", "generate_stream", "inference", "m", ""),
        (b"/v2/models/m/versions/3/generate_stream", "generate_stream", "inference", "m", "3"),
        (b"/v2/models/a%20b%2Fc/infer", "infer", "inference", "a b/c", ""),
        (b"/v2/models/versions", "model_metadata", "metadata", "versions", ""),
        (b"/v2/models/versions/versions/1", "model_metadata", "metadata", "versions", "1"),
        (b"/v2/repository/index", "repository_index", "model-repository", "", ""),
        (b"/v2/repository/models/m/load", "repository_load", "model-repository", "m", ""),
        (b"/v2/repository/models/m/unload", "repository_unload", "model-repository", "m", ""),
        (b"/v2/repository/models/a%2Fb/load", "repository_load", "model-repository", "a/b", ""),
        (b"http://host:8000/v2/models/m/infer", "infer", "inference", "m", ""),
        (b"/v%32/he%61lth/live", "live", "health", "", ""),
    ],
)
def test_path_names_a_route(target, handler, api, model, version):
    route = resolve(target)

    assert route is not None
    assert (route.endpoint.handler, route.endpoint.api) == (handler, api)
    assert (route.model, route.version) == (model, version)


@pytest.mark.parametrize(
    "target,handler,model",
    [
        (b"/v2/repository/r/index", "repository_index", ""),
        (b"/v2/repository/models/index", "repository_index", ""),
        (b"/v2/repository/r/models/m/load", "repository_load", "m"),
        (b"/v2/repository/r/models/m/unload", "repository_unload", "m"),
        (b"/v2/repository/models/models/models/load", "repository_load", "models"),
    ],
)
def test_path_may_name_a_repository(target, handler, model):
    route = resolve(target)

    assert route is not None
    assert (route.endpoint.handler, route.endpoint.api) == (handler, "model-repository")
    assert (route.model, route.repository) == (model, target.decode().split("/")[3])


@pytest.mark.parametrize(
    "target",
    [
        *(b"/v2/repository", b"/v2/repository/", b"/v2/repository//index", b"/v2/repository/r"),
        *(b"/v2/repository/index/", b"/v2/repository/r/index/", b"/v2/repository/r/s/index"),
        *(b"/v2/repository/models", b"/v2/repository/models/m", b"/v2/repository/models/m/x"),
        *(b"/v2/repository/models//load", b"/v2/repository/r/models//load"),
        *(b"/v2/repository//models/m/load", b"/v2/repository/models/m/load/x"),
        *(b"/v2/repository/x/m/load", b"/v2/repository/r/x/m/load"),
        *(b"", b"/", b"*", b"v2", b"//v2", b"/v2/", b"/v2/.", b"/./v2", b"/V2", b"/v2#x"),
        *(b"/v2//health/live", b"/v2/health/live/", b"/v2/health/./live", b"/v2/x/../health/live"),
        *(b"/v2%2fhealth%2flive", b"/v2;x/health/live", b"/v2/health/live%00", b"/v2/health/LIVE"),
        *(b"/v2/health", b"/v2/models", b"/v2/models/", b"/v2/models//infer", b"/v2/models/m/"),
        *(b"/v2/models/m/infer/", b"/v2/models/m/infer/x", b"/v2/models/m/x", b"/v1/models/m"),
        *(b"/v2/models/m/versions", b"/v2/models/m/versions/", b"/v2/models/m/versions/x"),
        *(b"/v2/models/m/versions/-1", b"/v2/models/m/versions/1.0", b"/v2/models/m/versions/1/"),
        *("/v2/models/m/versions/٣".encode(), b"/v2/models/m/versions/1/trace/setting"),
        *(b"http://host", b"http://", b"h:80", b"http://host:99999/v2", b"http://h//v2"),
    ],
)
def test_path_names_no_route(target):
    assert resolve(target) is None


def test_endpoint_tells_its_methods():
    infer, live = resolve(b"/v2/models/m/infer"), resolve(b"/v2/health/live")

    assert infer is not None
    assert live is not None
    assert infer.endpoint.allow == b"Allow: POST\r\n"
    assert live.endpoint.allow == b"Allow: GET, HEAD\r\n"


def test_router_remembers_and_forgets():
    router = Router()
    first = router.resolve(b"/v2/models/m/infer")
    for number in range(MAX_CACHED_TARGETS + 10):
        router.resolve(b"/v2/models/m%d/infer" % number)
    long = b"/v2/models/%b/infer" % (b"x" * MAX_CACHED_TARGET_BYTES)

    assert router.resolve(b"/v2/models/m/infer") == first
    assert router.resolve(long) == resolve(long)
    assert len(router._cache) <= MAX_CACHED_TARGETS
    assert long not in router._cache
