# SPDX-License-Identifier: Apache-2.0
"""The runtime for KServe starts a server as KServe expects it, and what scales it has metrics."""

from __future__ import annotations

import re

import pytest
import yaml

from pytriton.serving.server.command.arguments import parse
from pytriton.serving.server.metrics.page import server_family_names
from pytriton.serving.server.options.server_options import ServerOptions
from tests.deploy.helm import REPOSITORY, render
from tests.deploy.schemas import validate

FOLDER = REPOSITORY / "deploy/kserve"
RUNTIME = yaml.safe_load((FOLDER / "serving-runtime.yaml").read_text())
SERVICES = list(yaml.safe_load_all((FOLDER / "inference-service.yaml").read_text()))
CONTAINER = RUNTIME["spec"]["containers"][0]


@pytest.mark.parametrize("found", [RUNTIME, *SERVICES], ids=lambda each: each["metadata"]["name"])
def test_objects_for_kserve_are_valid(found):
    validate(found)


def test_runtime_serves_what_the_storage_initializer_has_brought():
    options = ServerOptions.from_triton_config(parse(CONTAINER["args"]).values)

    assert CONTAINER["name"] == "kserve-container"
    assert options.repository.paths == ("/mnt/models",)
    assert (options.http.port, options.grpc.port) == (8080, 9000)
    assert CONTAINER["ports"][0]["containerPort"] == options.http.port
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == str(options.metrics.port)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[name]["httpGet"]["port"] == options.http.port


def test_runtime_has_no_rights_that_it_does_not_need():
    assert CONTAINER["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_services_name_the_runtime_and_protocols_and_formats_of_it():
    formats = {each["name"] for each in RUNTIME["spec"]["supportedModelFormats"]}
    models = [service["spec"]["predictor"]["model"] for service in SERVICES]

    assert [model["protocolVersion"] for model in models] == RUNTIME["spec"]["protocolVersions"]
    for model in models:
        assert model["runtime"] == RUNTIME["metadata"]["name"]
        assert model["modelFormat"]["name"] in formats
    assert models[1]["ports"][0]["containerPort"] == 9000


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
