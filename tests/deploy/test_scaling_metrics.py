# SPDX-License-Identifier: Apache-2.0
"""Autoscalers ask for a metric that the adapter makes of a series that servers show."""

from __future__ import annotations

import re

import yaml

from pytriton.serving.server.metrics.page import server_family_names
from tests.deploy.helm import REPOSITORY, render

ADAPTER = yaml.safe_load((REPOSITORY / "deploy/prometheus/adapter.yaml").read_text())
OF_PROMETHEUS = {"namespace", "pod"}  # labels that a scrape of pods adds


def series_and_labels(query: str) -> tuple[str, set[str]]:
    name, labels = re.search(r"(nv_\w+)\{([^}]*)\}", query).groups()
    return name, set(re.findall(r"(\w+)(?:=~|!=|=)", labels))


def test_adapter_makes_the_metric_of_the_autoscaler_from_a_series_of_the_server():
    (rule,) = ADAPTER["rules"]["custom"]
    name, labels = series_and_labels(rule["seriesQuery"])
    (release,) = render({"autoscaling": {"kind": "hpa"}})
    (metric,) = release.one("HorizontalPodAutoscaler")["spec"]["metrics"]

    assert name in server_family_names()
    assert labels == OF_PROMETHEUS == set(rule["resources"]["overrides"])
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "4"}
    for part in ("<<.Series>>", "<<.LabelMatchers>>", "<<.GroupBy>>"):
        assert part in rule["metricsQuery"]


def test_keda_asks_for_the_pods_of_its_server_only():
    (release,) = render({"autoscaling": {"kind": "keda"}})
    (trigger,) = release.one("ScaledObject")["spec"]["triggers"]
    name, labels = series_and_labels(trigger["metadata"]["query"])
    (pattern,) = re.findall(r'pod=~"([^"]+)"', trigger["metadata"]["query"])

    assert name in server_family_names()
    assert labels == OF_PROMETHEUS
    assert re.fullmatch(pattern, "pytriton-5d4f8c7b9d-x2x7k")
    assert not re.fullmatch(pattern, "pytriton-ray-head-5x8lq-a-b")
    assert not re.fullmatch(pattern, "other-pytriton-5d4f8c7b9d-x2x7k")
