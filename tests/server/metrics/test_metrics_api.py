# SPDX-License-Identifier: Apache-2.0
"""The metrics port."""

from __future__ import annotations

import pytest

from pytriton.engine.model import Model
from pytriton.server.metrics.api import MetricsApi
from pytriton.server.metrics.exposition import gauge
from tests.fakes import model_spec
from tests.server.http_fakes import Client, get, post
from tests.server.http_models import Service


@pytest.fixture
def client():
    service = Service()
    return Client(MetricsApi(service.engine, service.options, service.loop))


@pytest.mark.parametrize("path", [b"/metrics", b"/metrics/", b"/metrics?x=y"])
def test_scrape_is_answered_in_text(client, path):
    client.send(get(path))

    (answer,) = client.answers()
    assert answer.status == 200
    assert answer.headers[b"Content-Type"] == b"text/plain; charset=utf-8"
    assert b'nv_inference_request_success{model="double",version="1"} 0' in answer.body


@pytest.mark.parametrize("path", [b"/", b"/metric", b"/v2/health/live", b"/metrics/x"])
def test_other_paths_are_empty(client, path):
    client.send(get(path))

    (answer,) = client.answers()
    assert (answer.status, answer.body) == (200, b"")


def test_other_methods_are_refused(client):
    client.send(post(b"x", b"/metrics"))
    client.send(b"DELETE / HTTP/1.1\r\nHost: h\r\n\r\n")
    client.send(get(b"/metrics"))

    assert client.statuses() == [405, 405, 200]
    assert client.answers()[0].headers[b"Allow"] == b"GET, HEAD"


def test_slow_scraper_is_cut_off(client):
    for at in range(15):
        client.send(get(b"/metrics")[at : at + 1])
    client.loop.advance(100)

    assert client.statuses() == [408]


def test_version_that_has_never_served_is_not_shown():
    service = Service()
    service.engine.add(Model(model_spec(name="failed"), service.loop))
    client = Client(MetricsApi(service.engine, service.options, service.loop))

    client.send(get(b"/metrics"))

    (answer,) = client.answers()
    assert b'model="double"' in answer.body
    assert b'model="failed"' not in answer.body


def test_families_of_models_are_read_at_each_scrape():
    service = Service()
    values = iter((1, 2))
    api = MetricsApi(
        service.engine, service.options, service.loop, lambda: [gauge("mine", "", next(values))]
    )
    client = Client(api)
    client.send(get(b"/metrics"))
    client.send(get(b"/metrics"))

    first, second = client.answers()
    assert first.body.endswith(b"\nmine 1\n")
    assert second.body.endswith(b"\nmine 2\n")
