# SPDX-License-Identifier: Apache-2.0
"""The dashboard, the alert rules and the page on metrics ask only for what a server shows."""

from __future__ import annotations

import json
import pathlib
import re
import shlex

import pytest

from pytriton.base.nvml import DeviceReading
from pytriton.base.triton_config import TritonConfig
from pytriton.serving.engine.config import config_from_text, normalise_config, validate_config
from pytriton.serving.engine.latencies import Latencies, LatencyPlan
from pytriton.serving.engine.stats import ModelStatistics
from pytriton.serving.server.command.arguments import parse
from pytriton.serving.server.metrics.cluster_families import cluster_families
from pytriton.serving.server.metrics.page import MetricsPage, server_family_names
from pytriton.serving.server.options.metrics_options import DEFAULT_QUANTILES, MetricsOptions
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.tools.commands.serve.options import read_options
from tests.fakes import model_spec
from tests.server.cluster_fakes import FakeInstance, actor, cluster, model
from tests.snippets import snippets

REPOSITORY = pathlib.Path(__file__).parent.parent
DASHBOARD = json.loads((REPOSITORY / "deploy/grafana/pytriton.json").read_text())
ALERTS = (REPOSITORY / "deploy/prometheus/alerts.yml").read_text()
PAGE = REPOSITORY / "docs/metrics.md"
NAME = re.compile(r"\bnv_\w+")
LABELS = re.compile(r"(?:by|on) \(([^)]*)\)")
OF_PROMETHEUS = {"instance"}


class FakeModel:
    running_count = 0

    def __init__(self, plan, **spec):
        self.spec = model_spec(**spec)
        self.statistics = ModelStatistics(latencies=Latencies(plan, self.spec))


def test_variables_of_the_chart_protect_a_program(monkeypatch):
    template = (REPOSITORY / "deploy/helm/pytriton/templates/deployment.yaml").read_text()
    found = re.findall(r"- name: (PYTRITON_TRITON_CONFIG_\w+)\n +value: (.+)", template)
    for name, value in found:
        monkeypatch.setenv(name, value.replace("{{ $apis }}", "inference"))
    config = TritonConfig.resolved(read_options(["service.py"]).server_config())
    options = ServerOptions.from_triton_config(config.to_dict())

    assert options.access.config == "/etc/pytriton/policy/auth.toml"
    assert options.tls.server_cert == "/etc/pytriton/tls/tls.crt"
    assert options.tls.server_key == "/etc/pytriton/tls/tls.key"
    assert [each.apis for each in (*options.http_restricted, *options.grpc_restricted)] == [
        ("inference",)
    ] * 2


def shown() -> str:
    """A page with every family."""
    plan = LatencyPlan(first_responses=True, quantiles=DEFAULT_QUANTILES)
    page = MetricsPage(MetricsOptions(latencies=plan))
    texts = page.begin()
    texts.add(FakeModel(plan, name="plain"))
    texts.add(FakeModel(plan, name="caching", response_cache=True))
    texts.add(FakeModel(plan, name="streaming", decoupled=True))
    models = [model("Add", FakeInstance("Add_0_0", "alpha", 7))]
    families = cluster_families(cluster(actor("Add_0_1")), models)
    gpus = [DeviceReading("GPU", 1.0, 1, 1, 1.0, 1.0, 1.0)]
    return b"".join(page.finish(texts, families, gpus)).decode()


SHOWN = shown()
SERIES = {re.split(r"[{ ]", line)[0] for line in SHOWN.splitlines() if not line.startswith("#")}
SHOWN_LABELS = set(re.findall(r"(\w+)=\"", SHOWN))


def expressions() -> list[str]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = re.findall(r"expr: (?:>-\n)?(.*?)(?=\n +(?:for|labels):)", ALERTS, re.DOTALL)
    return asked + [" ".join(rule.split()) for rule in rules]


def test_all_expressions_are_found():
    assert len(expressions()) > 35
    assert ALERTS.count("expr:") == ALERTS.count("alert:") == 10
    assert DASHBOARD["templating"]["list"][1]["query"]["query"].startswith("label_values(nv_")


@pytest.mark.parametrize("expression", expressions())
def test_expression_asks_for_series_and_labels_that_exist(expression):
    names = set(NAME.findall(expression))
    labels = {label.strip() for found in LABELS.findall(expression) for label in found.split(",")}
    matched = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression)) - {"job"}

    assert names or expression.startswith("up{")
    assert names <= SERIES
    assert labels | matched <= SHOWN_LABELS | OF_PROMETHEUS
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("expression", expressions())
def test_expression_takes_rates_of_counters_only(expression):
    kinds = dict(re.findall(r"# TYPE (\w+) (\w+)", SHOWN))
    for name in re.findall(r"(?:rate|increase)\((nv_\w+)", expression):
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert kinds.get(name, kinds.get(family)) in ("counter", "histogram")


def test_panels_do_not_overlap():
    cells = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        assert place["x"] + place["w"] <= 24
        cells |= own


def test_page_names_every_family_and_no_other():
    named = set(re.findall(r"`((?:nv|pytriton)_\w+)`", PAGE.read_text()))

    assert named == server_family_names()


def test_configurations_of_the_page_are_valid():
    blocks = snippets(PAGE, "")

    assert len(blocks) == 2
    for block in blocks:
        text = f'name: "m" backend: "python" {block.text}'
        validate_config(normalise_config(config_from_text(text, "config.pbtxt")))


def test_commands_of_the_page_are_accepted():
    lines = [line for block in snippets(PAGE, "shell") for line in block.text.splitlines()]
    commands = [shlex.split(line) for line in lines]

    assert commands
    for program, *arguments in commands:
        if program == "curl":
            continue
        assert program == "tritonserver"
        assert parse(arguments)
