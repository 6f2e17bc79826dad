# SPDX-License-Identifier: Apache-2.0
"""The page of a server whose instances run on a cluster, in a real browser.

No cluster is needed: the server is told what one would tell it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from types import SimpleNamespace

import pytest
from msgspec import structs

from pytriton.runtime.executor.remote.starter import ClusterStatus
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.server.core import Core
from pytriton.serving.server.options.endpoints import EndpointOptions
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.server import NetworkServer
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.fakes import FakeInstance
from tests.page.browser import started_browser
from tests.pictures import keep
from tests.server.cluster_fakes import actor, cluster

LOCAL = "127.0.0.1"
NOTHING = "\N{EN DASH}"
TENSORS = """max_batch_size: 8
    input [{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }]
    output [{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }]"""
ACTORS = [
    actor("classifier_0_0", "gpu-node-1", 4101),
    actor("classifier_0_1", "gpu-node-1", 4102),
    actor("classifier_0_2", "gpu-node-2", 977),
    actor("embedder_0_0", "gpu-node-2", 981),
    actor("embedder_0_1", "gpu-node-2", 990),
    actor("embedder_0_2"),
]
NODES = ("gpu-node-1", "gpu-node-2")
SERVING = {"classifier": ACTORS[:3], "embedder": ACTORS[3:4]}


class ClusterCore(Core):
    """A core with a cluster that a test decides on."""

    told: ClusterStatus | None = cluster(*ACTORS, nodes=NODES)

    def cluster_status(self):
        return self.told

    def add_models(self, loop):
        for name, actors in SERVING.items():
            config = normalise_config(config_from_text(f'name: "{name}" {TENSORS}', "config"))
            model = Model(spec_from_config(config, 1), loop, is_bound=True)
            for each in actors:
                instance = FakeInstance(each.instance, model)
                instance.node, instance.pid = each.node, each.pid
                model.add_instance(instance)
            model.become(VersionState.READY)
            self.engine.add(model)


class PageServer:
    """A server on an event loop of its own, in a thread."""

    def __init__(self):
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.core = None
        self.port = 0

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    async def _run(self):
        loop = asyncio.get_running_loop()
        endpoint, off = EndpointOptions(port=0, address=LOCAL), EndpointOptions(port=0, allow=False)
        options = ServerOptions(http=endpoint, grpc=off, metrics=endpoint)
        self.core = ClusterCore(options, loop)
        self.core.add_models(loop)
        server = NetworkServer(self.core, options, loop)
        await server.start()
        self.port = server.metrics_port
        self._ready.set()
        await asyncio.to_thread(self._end.wait)
        server.refuse_requests()
        await server.end_connections(5)
        await self.core.stop(5)


@pytest.fixture(scope="module")
def server():
    with PageServer() as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory, server):
    with started_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield SimpleNamespace(page=browser, url=f"http://{LOCAL}:{server.port}/")


@pytest.fixture
def page(browser, server):
    server.core.told = ClusterCore.told
    browser.page.size(1280, 900)
    browser.page.open(browser.url)
    return browser.page


def rows(page, css):
    script = """return [...document.querySelectorAll(arguments[0])].map((row) =>
        [...row.cells].map((cell) => cell.textContent.trim()))"""
    return page.run(script, f"{css} tbody tr")


def document(server):
    url = f"http://{LOCAL}:{server.port}/page/api/cluster"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read())["cluster"]


def test_document_has_nodes_and_instances(server):
    told = document(server)

    assert told["nodes"][0] == {
        "name": "gpu-node-1",
        "total": {"CPU": 8.0, "GPU": 1.0},
        "available": {"CPU": 5.0, "GPU": 0.5},
        "processes": 2,
    }
    assert told["instances"][2:4] == [
        {"model": "classifier", "version": "1", "name": "classifier_0_2", "node": "gpu-node-2",
         "pid": 977, "state": "running"},
        {"model": "embedder", "version": "1", "name": "embedder_0_0", "node": "gpu-node-2",
         "pid": 981, "state": "running"},
    ]  # fmt: skip


def test_cluster_has_a_view_with_its_nodes_and_instances(page):
    page.click("nav a", "Cluster")
    page.see("table.instances td", "embedder_0_2")

    assert page.text("p.facts") == "Ray at 10.0.0.1:6379 · 2 nodes · 4 of 6 instances running"
    assert rows(page, "table.nodes") == [
        ["gpu-node-1", "3 of 8 in use", "0.5 of 1 in use", "2", "classifier 2"],
        ["gpu-node-2", "3 of 8 in use", "0.5 of 1 in use", "3", "classifier 1, embedder 2"],
    ]
    assert rows(page, "table.instances")[3:] == [
        ["embedder v1", "embedder_0_0", "gpu-node-2", "981", "running"],
        ["embedder v1", "embedder_0_1", "gpu-node-2", "990", "starting"],
        ["embedder v1", "embedder_0_2", "none yet", NOTHING, "pending"],
    ]
    page.size(1280, 760)
    keep("page_cluster.png", page.picture())


def test_model_has_its_instances(page):
    page.click("table.models a", "embedder")
    page.see("table.instances td", "embedder_0_1")

    assert [row[1:] for row in rows(page, "table.instances")] == [
        ["gpu-node-2", "981", "running"],
        ["gpu-node-2", "990", "starting"],
        ["none yet", NOTHING, "pending"],
    ]


def test_cluster_that_is_out_of_reach_is_said_and_its_instances_stay(page, server):
    page.click("nav a", "Cluster")
    server.core.told = ClusterStatus(problem="the head of the cluster does not answer")
    page.see("p.problem", "No instance can be started now: the head of the cluster does not answer")

    running = [row for row in rows(page, "table.instances") if row[-1] == "running"]
    assert [row[2] for row in running] == ["gpu-node-1", "gpu-node-1", "gpu-node-2", "gpu-node-2"]
    page.see(".empty", "No nodes are known.")


def test_nodes_of_a_cluster_that_is_out_of_reach_are_said_to_be_of_the_past(page, server):
    page.click("nav a", "Cluster")
    server.core.told = structs.replace(ClusterCore.told, is_connected=False, unreachable_s=200.0)
    page.see("p.problem", "The nodes were last seen 3 min ago. No instance can be started now")

    assert [row[0] for row in rows(page, "table.nodes")] == list(NODES)


def test_model_that_has_lost_instances_says_how_many_are_left(page, server):
    model = next(each for each in server.core.engine.models() if each.spec.name == "embedder")
    model._pool.missing_count = 2
    page.see("table.models td", "1 of 3 instances")
    page.click("table.models a", "embedder")
    page.see("p.facts", "1 of 3 instances")
    model._pool.missing_count = 0


def test_server_without_a_cluster_has_no_such_view(page, server):
    page.see("nav a", "Cluster")
    server.core.told = None

    is_shown = "return document.querySelector('[data-view=cluster]').checkVisibility()"
    assert eventually(lambda: not page.run(is_shown))
    assert page.run("return location.hash") in ("", "#/")
    assert document(server) is None


def test_key_leads_to_the_cluster_and_nothing_went_wrong(page):
    page.see("nav a", "Cluster")
    page.run("document.body.focus()")
    page.press("c")
    page.see("h1", "Cluster")

    assert [line for line in page.console() if "favicon" not in line] == []
