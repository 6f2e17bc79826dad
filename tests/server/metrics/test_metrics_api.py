# SPDX-License-Identifier: Apache-2.0
"""The metrics port."""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

import pytest

from pytriton.base.nvml import DeviceReading
from pytriton.serving.engine.model import Model
from pytriton.serving.server.http.request import HttpRequest, RequestHead
from pytriton.serving.server.metrics import api as api_module
from pytriton.serving.server.metrics.api import MetricsApi
from pytriton.serving.server.metrics.exposition import gauge
from pytriton.serving.server.options.metrics_options import MetricsOptions
from tests.fakes import model_spec
from tests.server.cluster_fakes import actor, cluster
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


def test_body_of_gigabytes_is_not_received(client):
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")

    (answer,) = client.answers()
    assert answer.status == 400
    assert b"67108864" in answer.body


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


def test_instances_of_a_cluster_are_shown_once_there_is_one():
    service = Service()
    statuses = iter((None, cluster(actor("double_0_1", "beta", 8))))
    api = MetricsApi(service.engine, service.options, service.loop, cluster=lambda: next(statuses))
    client = Client(api)
    client.send(get(b"/metrics"))
    client.send(get(b"/metrics"))

    before, after = client.answers()
    assert b"instance" not in before.body.replace(b"that instances work on", b"")
    starting = b'nv_model_instance_count{model="double",node="beta",state="starting",version="1"} 1'
    assert starting in after.body


class FakeConnection:
    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()

    def respond(self, status, parts=(), content_type=b"", headers=b""):
        self.answer.set_result((status, b"".join(parts)))

    def respond_error(self, status, message, headers=b""):
        self.answer.set_result((status, message.encode()))


class FakeGpus:
    uuids: ClassVar = {0: "GPU-a"}

    def __init__(self, error=None):
        self.readings = 0
        self._error = error

    def read(self):
        self.readings += 1
        if self._error is not None:
            raise self._error
        return [DeviceReading("GPU-a", self.readings / 10)]


async def scrape(api):
    connection = FakeConnection()
    exchange = api.handle(connection, HttpRequest(RequestHead(b"GET", b"/metrics", {}), b""))
    return exchange, await connection.answer


def make_api(**options):
    service = Service(metrics_options=MetricsOptions(**options))
    api = MetricsApi(service.engine, service.options, asyncio.get_running_loop())
    return service, api


def test_scrape_of_many_models_lets_requests_run():
    async def run():
        service, api = make_api()
        for number in range(200):
            model = Model(model_spec(name=f"m{number}"), service.loop)
            service.engine.add(model)
            service.engine.set_ready(model)
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        exchange, (status, body) = await scrape(api)
        task.cancel()
        return exchange, status, body, turns

    exchange, status, body, turns = asyncio.run(run())
    assert exchange is not None
    assert status == 200
    assert body.count(b"nv_inference_count{") == 202
    assert turns >= 6


def test_gpus_are_read_no_more_often_than_the_interval():
    async def run():
        _, api = make_api(interval_ms=3_600_000)
        gpus = FakeGpus()
        api.start(lambda: gpus)
        await api._tasks.wait()
        pages = [(await scrape(api))[1] for _ in range(2)]
        return gpus, pages

    gpus, pages = asyncio.run(run())
    assert gpus.readings == 1
    assert [status for status, _ in pages] == [200, 200]
    assert all(b'nv_gpu_utilization{gpu_uuid="GPU-a"} 0.1\n' in body for _, body in pages)


def test_gpu_memory_of_instances_is_in_the_metrics_and_in_the_index():
    class Gpus(FakeGpus):
        def read(self):
            return [DeviceReading("GPU-a", process_bytes={7: 500, 8: 1})]

    async def run():
        service, api = make_api()
        service.engine.find("double").instances[0].pid = 7

        def tell_client():
            service.client.gpu_memory = api.gpu_memory

        before = service.client.index()
        api.on_gpus_found = tell_client
        api.start(Gpus)
        await api._tasks.wait()
        return before, (await scrape(api))[1][1], await service.client.index()

    before, body, after = asyncio.run(run())
    line = b'nv_model_gpu_memory_bytes{gpu_uuid="GPU-a",model="double",version="1"} 500\n'
    assert line in body
    assert body.count(b"\nnv_instance_process_gpu_memory_bytes{") == 1
    assert {each.gpu_memory_bytes for each in before} == {0}
    known = {each.name: each.gpu_memory_bytes for each in after}
    assert known["double"] == 500
    assert sum(known.values()) == 500


def test_gpus_are_not_looked_for_if_nobody_wants_them():
    async def run():
        _, api = make_api(gpu=False)
        api.start(pytest.fail)
        return len(api._tasks)

    assert asyncio.run(run()) == 0


def test_driver_that_fails_does_not_leave_the_scraper_without_an_answer():
    async def run():
        _, api = make_api()
        api.start(lambda: FakeGpus(OSError("fell off the bus")))
        await api._tasks.wait()
        return (await scrape(api))[1]

    status, body = asyncio.run(run())
    assert status == 200
    assert b"nv_gpu" not in body
    assert b"nv_inference_count" in body


def test_driver_that_hangs_does_not_hold_scrapes_up(monkeypatch):
    monkeypatch.setattr(api_module, "_GPU_WAIT_S", 0.01)
    released = threading.Event()

    class HangingGpus(FakeGpus):
        def read(self):
            released.wait()
            return super().read()

    async def run():
        _, api = make_api(interval_ms=0.001)
        gpus = HangingGpus()
        api.start(lambda: gpus)
        await api._tasks.wait()
        pages = [(await scrape(api))[1][1] for _ in range(3)]
        released.set()
        await api._tasks.wait()
        return gpus.readings, pages

    readings, pages = asyncio.run(run())
    assert readings == 1
    assert all(b"nv_inference_count" in page for page in pages)


def test_scrapes_beyond_the_limit_are_refused_until_others_are_done(monkeypatch):
    monkeypatch.setattr(api_module, "MAX_SCRAPES", 2)
    monkeypatch.setattr(api_module, "_MODELS_AT_ONCE", 1)

    async def run():
        _, api = make_api()
        together = await asyncio.gather(*(scrape(api) for _ in range(3)))
        await asyncio.sleep(0)
        later = await scrape(api)
        return [status for _, (status, _) in (*together, later)], api.refused_scrapes

    assert asyncio.run(run()) == ([200, 200, 503, 200], 1)


def test_large_body_is_refused_unless_the_page_has_a_form_for_it(client):
    client.send(post(bytes(65537), b"/metrics")[:200])

    (answer,) = client.answers()
    assert answer.status == 400
    assert b"expected a body of at most 65536 bytes for this request" in answer.body
    assert client.handler.refusals == {"http_body_bytes": 1}
