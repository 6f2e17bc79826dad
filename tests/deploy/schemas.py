# SPDX-License-Identifier: Apache-2.0
"""Checks objects of Kubernetes: its own kinds against its published schemas.

No Python package has the schemas of the operators' kinds (KubeRay, KServe, KEDA, Prometheus').
Those here are our own and small: the fields that our files use, with the names, types and values
that the operators' references give them. A field that is not here is refused, so a new one has to
be looked up. The pods inside of these objects are checked against the schema of Kubernetes.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

Json = dict[str, Any]


def record(required: str = "", **properties: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def each(items: Json, at_least: int = 1) -> Json:
    return {"type": "array", "items": items, "minItems": at_least}


def one_of(*values: str) -> Json:
    return {"enum": list(values)}


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
ANY = {"type": "object"}  # is checked as a part of a pod
TEXTS_BY_NAME = {"type": "object", "additionalProperties": TEXT}
METADATA = record("name", name=TEXT, labels=TEXTS_BY_NAME, annotations=TEXTS_BY_NAME)
TEMPLATE = record("metadata spec", metadata=record(labels=TEXTS_BY_NAME), spec=ANY)
SELECTOR = record("matchLabels", matchLabels=TEXTS_BY_NAME)


def kind(version: str, name: str, spec: Json) -> Json:
    found = record(
        "apiVersion kind metadata spec",
        apiVersion={"const": version},
        kind={"const": name},
        metadata=METADATA,
        spec=spec,
    )
    return {(version, name): found}  # type: ignore[return-value]


RAY_CLUSTER = record(
    "headGroupSpec",
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
    authOptions=record("mode", mode=one_of("token", "disabled"), secretName=TEXT),
    upgradeStrategy=record("type", type=one_of("Recreate", "None")),
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=record(idleTimeoutSeconds=COUNT, securityContext=ANY),
    headGroupSpec=record(
        "rayStartParams template", rayStartParams=TEXTS_BY_NAME, template=TEMPLATE
    ),
    workerGroupSpecs=each(
        record(
            "groupName minReplicas maxReplicas rayStartParams template",
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            rayStartParams=TEXTS_BY_NAME,
            template=TEMPLATE,
        )
    ),
)

SERVING_RUNTIME = record(
    "containers",
    annotations=TEXTS_BY_NAME,
    protocolVersions=each(one_of("v1", "v2", "grpc-v1", "grpc-v2")),
    supportedModelFormats=each(
        record("name", name=TEXT, version=TEXT, autoSelect=FLAG, priority=COUNT)
    ),
    containers=each(ANY),
    volumes=each(ANY),
)

INFERENCE_SERVICE = record(
    "predictor",
    predictor=record(
        "model",
        minReplicas=COUNT,
        maxReplicas=COUNT,
        model=record(
            "modelFormat",
            runtime=TEXT,
            modelFormat=record("name", name=TEXT, version=TEXT),
            protocolVersion=one_of("v1", "v2", "grpc-v1", "grpc-v2"),
            storageUri={"type": "string", "pattern": "^[a-z0-9]+://"},
            ports=each(ANY),
            resources=ANY,
        ),
    ),
)

SCALED_OBJECT = record(
    "scaleTargetRef triggers",
    scaleTargetRef=record("name", name=TEXT, kind=TEXT, apiVersion=TEXT),
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    pollingInterval=COUNT,
    advanced=record(horizontalPodAutoscalerConfig=record(behavior=ANY)),
    triggers=each(
        record(
            "type metadata",
            type=one_of("prometheus", "cpu"),
            metricType=one_of("AverageValue", "Value", "Utilization"),
            metadata=TEXTS_BY_NAME,
        )
    ),
)

ENDPOINT = record(
    "port",
    port=TEXT,
    path=TEXT,
    interval=TEXT,
    scheme=one_of("http", "https"),
    tlsConfig=record(insecureSkipVerify=FLAG),
)
POD_MONITOR = record(
    "selector podMetricsEndpoints", selector=SELECTOR, podMetricsEndpoints=each(ENDPOINT)
)
SERVICE_MONITOR = record("selector endpoints", selector=SELECTOR, endpoints=each(ENDPOINT))

SCHEMAS = {
    **kind("ray.io/v1", "RayCluster", RAY_CLUSTER),
    **kind("serving.kserve.io/v1alpha1", "ClusterServingRuntime", SERVING_RUNTIME),
    **kind("serving.kserve.io/v1alpha1", "ServingRuntime", SERVING_RUNTIME),
    **kind("serving.kserve.io/v1beta1", "InferenceService", INFERENCE_SERVICE),
    **kind("keda.sh/v1alpha1", "ScaledObject", SCALED_OBJECT),
    **kind("monitoring.coreos.com/v1", "PodMonitor", POD_MONITOR),
    **kind("monitoring.coreos.com/v1", "ServiceMonitor", SERVICE_MONITOR),
}


def validate(found: Json) -> None:
    """Raises if an object is not as its kind wants it."""
    schema = SCHEMAS.get((found["apiVersion"], found["kind"]))
    if schema is None:
        _validate_own_kind(found)
        return
    jsonschema.validate(found, schema)
    for spec in pods_of(found):
        metadata = {"name": "pod"}
        _validate_own_kind({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def pods_of(found: Json) -> list[Json]:
    """Returns the specifications of pods inside of an object."""
    spec = found["spec"]
    match found["kind"]:
        case "Deployment":
            return [spec["template"]["spec"]]
        case "RayCluster":
            groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
            return [group["template"]["spec"] for group in groups]
        case "ClusterServingRuntime" | "ServingRuntime":
            return [{"containers": spec["containers"], "volumes": spec["volumes"]}]
        case "InferenceService":
            ports = spec["predictor"]["model"].get("ports", [])
            return [{"containers": [{"name": "c", "image": "i", "ports": ports}]}]
    return []


def _validate_own_kind(found: Json) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)
