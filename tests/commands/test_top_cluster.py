# SPDX-License-Identifier: Apache-2.0
"""What `pytriton top` shows of the nodes of a cluster, from metrics alone."""

from __future__ import annotations

import io
import json
import re

import pytest
from msgspec import structs
from rich.console import Console

from pytriton.__main__ import main
from pytriton.serving.server.metrics.cluster_families import cluster_families
from pytriton.tools.commands.top.rows import row_document, rows_of
from pytriton.tools.commands.top.samples import (
    InstancePlace,
    add_page_numbers,
    cluster_document,
    places_text,
    read_metrics,
)
from pytriton.tools.commands.top.state import ESCAPE, TopScreen, ViewState
from pytriton.tools.commands.top.view import Shown, draw, node_lines, table_lines
from tests.commands.scripted_metrics import ScriptedServer
from tests.free_ports import first_of_free_ports
from tests.pictures import keep
from tests.server.cluster_fakes import FakeInstance, actor, cluster, model


def metrics(*, is_connected=True, requests=0, unreachable_s=0.0):
    """Metrics of two models on two nodes, one of which has no room for a third instance."""
    add = model("adder", FakeInstance("adder_0", "alpha", 1), FakeInstance("adder_1", "beta", 2))
    local = model("tokenizer", FakeInstance("tokenizer_0"))
    status = cluster(
        actor("adder_0", "alpha", 1),
        actor("adder_1", "beta", 2),
        actor("adder_2"),
        actor("embedder_0", "beta", 3),
    )
    if not is_connected:
        status = type(status)(False, "gone", nodes=status.nodes, actors=status.actors)
        status = structs.replace(status, unreachable_s=unreachable_s)
    texts = [family.text() for family in cluster_families(status, [add, local])]
    counts = [
        f'nv_inference_request_success{{model="{name}",version="1"}} {requests}\n'
        for name in ("adder", "tokenizer")
    ]
    return "".join([*texts, *counts])


@pytest.fixture
def shown():
    first, last = read_metrics(metrics(), 1.0), read_metrics(metrics(requests=240), 3.0)
    states = {(name, "1"): ("READY", "") for name in ("adder", "tokenizer")}
    states["embedder", "1"] = ("LOADING", "")
    result = Shown("http://localhost:8000", "triton 2.73.0", rows_of(first, last, states), last)
    result.history.add(result.rows)
    return result


def screen(shown, screen_kind, height=14, width=80):
    lines = draw(shown, ViewState(screen=screen_kind, selected=("adder", "1")), width, height)
    return "\n".join(line.plain.rstrip() for line in lines)


def test_nodes_have_resources_and_the_instances_on_them(shown):
    assert node_lines(shown.rows, shown.cluster) == [
        "NODE        PROC     CPU       GPU  MODELS",
        "alpha          1  3 of 8  0.5 of 1  adder 1",
        "beta           2  3 of 8  0.5 of 1  adder 1, embedder 1 starting",
        "(server)       -       -         -  tokenizer 1",
        "(none yet)     -       -         -  adder 1 pending",
    ]


def test_head_says_what_the_cluster_does_and_the_foot_how_to_see_it(shown):
    text = screen(shown, TopScreen.TABLE)

    assert "\n cluster 2 nodes   instances 3 run   2 not yet\n" in text
    assert text.endswith("Enter details  n nodes  ? help")


def test_launcher_that_is_down_is_said(shown):
    shown.sample = read_metrics(metrics(is_connected=False), 4.0)

    assert "the launcher is down, so none can be started" in screen(
        shown, TopScreen.TABLE, width=120
    )


def test_nodes_of_a_cluster_that_does_not_answer_are_said_to_be_of_the_past(shown):
    shown.sample = read_metrics(metrics(is_connected=False, unreachable_s=200.0), 4.0)

    ago = "last seen 3 min ago, as the cluster does not answer"
    assert f" cluster 2 nodes {ago}   instances 3 run" in screen(shown, TopScreen.TABLE, width=120)
    assert node_lines(shown.rows, shown.cluster)[-1] == f"The nodes are those that were {ago}"


def test_ready_model_without_any_instance_is_said_to_have_none(shown):
    lost = model("adder", missing=3)
    families = cluster_families(cluster(), [lost])
    sample = read_metrics("".join(family.text() for family in families), 4.0)
    shown.sample, shown.rows = sample, rows_of(None, sample, {("adder", "1"): ("READY", "")})
    line = next(line for line in table_lines(shown) if line.startswith("adder"))

    assert " NO INST. " in line
    assert "0/3" in line.split()
    assert " models 0 of 1 ready" in screen(shown, TopScreen.TABLE)
    assert "instances   0 of 3: 3 missing\n" in screen(shown, TopScreen.DETAILS)


def test_key_opens_and_closes_the_nodes(shown):
    state = ViewState()
    state.press("n", [])
    assert state.screen is TopScreen.NODES
    assert " beta           2  3 of 8" in screen(shown, TopScreen.NODES)
    for key in ("n", ESCAPE):
        state.screen = TopScreen.NODES
        state.press(key, [])
        assert state.screen is TopScreen.TABLE


def test_nodes_that_do_not_fit_are_counted(shown):
    assert " and 3 more; a larger terminal shows them" in screen(shown, TopScreen.NODES, height=9)


def test_server_without_a_cluster_says_so_and_shows_as_before(shown):
    shown.sample = read_metrics('nv_inference_count{model="m",version="1"} 1', 5.0)
    shown.rows = rows_of(None, shown.sample, {})

    assert "All instances run on the server's own machine." in screen(shown, TopScreen.NODES)
    assert "cluster" not in screen(shown, TopScreen.TABLE)
    assert "nodes" not in screen(shown, TopScreen.TABLE)


def test_details_say_where_the_instances_are(shown):
    assert "instances   2 of 3: alpha 1, beta 1; 1 pending\n" in screen(shown, TopScreen.DETAILS)


def test_instances_of_the_metrics_count_and_not_those_of_the_page(shown):
    entry = {"name": "adder", "version": "1", "instances": 9, "missing": 9}
    add_page_numbers(shown.sample, {"now": {"models": [entry]}}, 1.0)

    counts = shown.sample.models["adder", "1"]
    assert (counts.instances, counts.missing) == (2, 1)
    assert "2/3" in table_lines(shown)[1].split()


def test_states_on_nodes_are_told_apart():
    places = [
        InstancePlace("a", "running", 2),
        InstancePlace("a", "starting", 1),
        InstancePlace("", "missing", 1),
    ]

    assert places_text(places) == "a 2; 1 missing, 1 starting on a"


def test_documents_have_places_and_nodes(shown):
    document = row_document(shown.rows[0])

    assert list(document["places"]) == [
        {"node": "", "state": "pending", "count": 1},
        {"node": "alpha", "state": "running", "count": 1},
        {"node": "beta", "state": "running", "count": 1},
    ]
    nodes = cluster_document(shown.cluster)["nodes"]
    assert nodes["alpha"]["total"] == {"CPU": 8.0, "GPU": 1.0}


def test_command_prints_the_nodes_below_the_models(capsys):
    server = ScriptedServer(first_of_free_ports(3))
    server.text = metrics()
    server.index = [{"name": "adder", "version": "1", "state": "READY"}]
    server.start()
    try:
        address = f"localhost:{server.port}"
        where = ["--interval", "0.1", "-u", address, "--metrics-url", address]
        assert main(["top", "--once", *where]) == 0
        table = capsys.readouterr().out
        assert main(["top", "--json", *where]) == 0
        document = json.loads(capsys.readouterr().out)
    finally:
        server.stop()

    assert "\n\nNODE        PROC     CPU       GPU  MODELS\nalpha " in table
    assert document["cluster"]["nodes"]["beta"]["processes"] == 2


def test_picture_of_the_nodes(shown):
    console = Console(record=True, width=90, file=io.StringIO(), force_terminal=True)
    for line in draw(shown, ViewState(screen=TopScreen.NODES), 90, 12):
        console.print(line, no_wrap=True, crop=True)
    svg = console.export_svg(title="pytriton top")
    # rich's template loads a font from another host.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")

    assert "embedder" in svg
    keep("top_nodes.svg", svg.encode())
