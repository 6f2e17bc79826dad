# SPDX-License-Identifier: Apache-2.0
"""What the chart renders is valid, fits the server's options, and has only the rights it needs."""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from pytriton.base.triton_config import TritonConfig
from pytriton.serving.server.command.arguments import parse
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.tools.commands.serve.options import read_options
from tests.deploy.helm import CHART, MODES, REPOSITORY, lint, mode_values, plain_manifest, render
from tests.deploy.schemas import pods_of, validate

NAME = "rayclusters"
PATH = f"/apis/ray.io/v1/namespaces/default/{NAME}/pytriton-ray"


def documents(image: str) -> dict[str, Any]:
    resource = {
        "name": NAME,
        "singularName": "raycluster",
        "namespaced": True,
        "kind": "RayCluster",
        "verbs": ["get", "list"],
    }
    version = {"groupVersion": "ray.io/v1", "version": "v1"}
    group = {"name": "ray.io", "versions": [version], "preferredVersion": version}
    template = {"spec": {"containers": [{"name": "ray-head", "image": image}]}}
    return {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        "/apis/ray.io/v1": {
            "kind": "APIResourceList",
            "groupVersion": "ray.io/v1",
            "resources": [resource],
        },
        PATH: {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": "pytriton-ray", "namespace": "default"},
            "spec": {"headGroupSpec": {"template": template}},
        },
    }


@contextlib.contextmanager
def cluster_with_ray(image: str) -> Iterator[str]:
    """A server of the API, in which Ray's pods have this image; gives its address."""
    known = documents(image)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found = known.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "code": 404, "reason": "NotFound"})
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


ONE, MANY, RAY = "one-server", "many-servers", "ray"
VALUES = {path.stem: mode_values(path) for path in MODES}
RECREATED = {"enabled": True, "recreate": True}
SELECTED = [{"podSelector": {"matchLabels": {"app": "client"}}}]
CASES = {
    **VALUES,
    "gpus": {"gpus": 2, "nodeSelector": {"gpu": "yes"}, "runtimeClassName": "nvidia"},
    "keda": {"autoscaling": {"kind": "keda", "cpuPercent": 70}},
    "monitors": {"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
    "policies": {"networkPolicy": {"enabled": True}},
    "policies of ray": {
        "networkPolicy": {"enabled": True, "clients": SELECTED, "operators": SELECTED},
        "ray": {"enabled": True},
    },
    "ray that is there": {
        "ray": {"enabled": True, "address": "ray.example:6379", "auth": {"mode": "disabled"}},
        "networkPolicy": {"enabled": True, "instances": SELECTED},
    },
    "secrets": {
        "adminSecret": {"name": "keys"},
        "envFrom": [{"secretRef": {"name": "bucket"}}],
        "imagePullSecrets": [{"name": "registry"}],
        "models": {"repositories": ["s3://bucket/models"], "claim": ""},
    },
    "protected": {
        "tls": {"secret": "certificate"},
        "policy": {"secret": "policy"},
        "metrics": {"podMonitor": {"enabled": True}},
    },
    "a protected program": {
        "command": ["pytriton", "serve", "service.py", "--host", "0.0.0.0"],
        "adminSecret": {"name": "keys"},
        "tls": {"secret": "certificate"},
        "policy": {"secret": "policy"},
    },
    "a program": {"command": ["python", "/app/server.py"], "exit": {"preStopSeconds": 15}},
    "balanced": {"service": {"type": "LoadBalancer", "headless": False}, "replicas": 3},
    "placed": {
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "podLabels": {"team": "search"},
        "podAnnotations": {"note": "1"},
        "priorityClassName": "high",
        "extraVolumes": [{"name": "keys", "secret": {"secretName": "tls"}}],
        "extraVolumeMounts": [{"name": "keys", "mountPath": "/keys", "readOnly": True}],
        "options": ["--strict-readiness=false"],
        "env": [{"name": "A", "value": "b"}],
    },
}
WRONG = {
    "replica": {"replica": 2},
    "replicas": {"replicas": "two"},
    "pullPolicy": {"image": {"pullPolicy": "Sometimes"}},
    "kind": {"autoscaling": {"kind": "vpa"}},
    "pendingRequests": {"autoscaling": {"kind": "hpa", "pendingRequests": 0}},
    "maxReplicas": {"autoscaling": {"kind": "hpa", "minReplicas": 3, "maxReplicas": 2}},
    "address": {"ray": {"enabled": True, "address": "ray://head:10001"}},
    "workers": {"ray": {"enabled": True, "workers": []}},
    "networkPolicy.instances": {
        "ray": {"enabled": True, "address": "ray.example:6379"},
        "networkPolicy": {"enabled": True},
    },
    "options": {"options": ["model-control-mode=explicit"]},
    "options are those of tritonserver": {
        "options": ["--auth-config=/etc/a.toml"],
        "command": ["pytriton", "serve", "service.py"],
    },
    "policy reach tritonserver": {
        "policy": {"secret": "policy"},
        "command": ["/opt/venv/bin/tritonserver", "--model-repository=/models"],
    },
    "leave command out": {
        "tls": {"secret": "certificate"},
        "command": ["python", "-m", "pytriton.server"],
    },
}


@pytest.fixture(scope="module")
def releases():
    return dict(zip(CASES, render(*CASES.values()), strict=True))


def container_of(release):
    return release.one("Deployment")["spec"]["template"]["spec"]["containers"][0]


def options_of(release):
    """The options of the server, with its variables as Kubernetes puts them in."""
    container = container_of(release)
    known = {"POD_IP": "10.0.0.7", "ADMIN_KEY": "secret"}
    names = {variable["name"] for variable in container.get("env", ())}
    variables = {f"$({name})": value for name, value in known.items() if name in names}
    arguments = []
    for argument in container["args"]:
        for name, value in variables.items():
            argument = argument.replace(name, value)  # noqa: PLW2901  one after the other
        assert "$(" not in argument
        arguments.append(argument)
    return ServerOptions.from_triton_config(parse(arguments).values)


@pytest.mark.parametrize("case", CASES)
def test_rendered_objects_are_valid(releases, case):
    release = releases[case]

    assert not release.error
    for each in release.objects:
        validate(each)


def test_linter_finds_nothing_in_the_chart():
    for report in lint(*VALUES.values()):
        serious = [each for each in report["messages"] if each["severity"] > 1]
        assert (serious, report["errors"]) == ([], [])


def test_wrong_values_are_refused_by_name():
    for (name, _), release in zip(WRONG.items(), render(*WRONG.values()), strict=True):
        assert name.rpartition(".")[2] in release.error, (name, release)


def test_modes_have_their_objects(releases):
    server = ["Deployment", "Service", "Service"]

    assert releases[ONE].kinds == server
    scaled = ["HorizontalPodAutoscaler", "PodDisruptionBudget"]
    assert releases[MANY].kinds == sorted([*server, *scaled])
    assert releases[RAY].kinds == sorted([*server, "RayCluster"])
    assert "ScaledObject" in releases["keda"].kinds
    assert "RayCluster" not in releases["ray that is there"].kinds


@pytest.mark.parametrize("mode", MODES, ids=lambda path: path.stem)
def test_plain_manifests_are_what_the_chart_renders(releases, mode):
    path = REPOSITORY / "deploy/kubernetes" / mode.name

    assert path.read_text() == plain_manifest(releases[mode.stem], mode), (
        "`python -m tests.deploy.helm` makes the manifests anew"
    )


def test_there_is_a_plain_manifest_for_each_mode():
    names = sorted(path.name for path in (REPOSITORY / "deploy/kubernetes").glob("*.yaml"))

    assert names == [path.name for path in MODES]


@pytest.mark.parametrize("case", CASES)
def test_pods_have_no_rights_that_they_do_not_need(releases, case):
    for each in releases[case].objects:
        for pod in pods_of(each):
            security = pod["securityContext"]
            assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["enableServiceLinks"] is False
            for container in [*pod["containers"], *pod.get("initContainers", [])]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
                assert not any("/dev/shm" in m["mountPath"] for m in container["volumeMounts"])


def test_only_the_pod_that_adds_workers_may_ask_the_cluster(releases):
    pods = [pod for each in releases[RAY].objects for pod in pods_of(each)]
    with_token = [p for p in pods if p.get("automountServiceAccountToken", True)]

    assert [pod["containers"][0]["name"] for pod in with_token] == ["ray-head"]


@pytest.mark.parametrize("case", [case for case in CASES if "program" not in case])
def test_arguments_are_options_and_end_before_the_pod_is_killed(releases, case):
    pod = releases[case].one("Deployment")["spec"]["template"]["spec"]
    options = options_of(releases[case])
    needed_s = options.exit_grace_s + options.exit_timeout_s

    assert needed_s < pod["terminationGracePeriodSeconds"]
    assert options.exit_grace_s > 0
    assert options.access_log.file == "-"


def test_program_has_a_pause_before_it_is_ended(releases):
    container = container_of(releases["a program"])
    pod = releases["a program"].one("Deployment")["spec"]["template"]["spec"]

    assert "args" not in container
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "15"]
    assert pod["terminationGracePeriodSeconds"] == 15 + 10 + 40 + 10


@pytest.mark.parametrize("case", CASES)
def test_update_has_a_new_server_before_it_ends_an_old_one(releases, case):
    spec = releases[case].one("Deployment")["spec"]
    probe = container_of(releases[case])["readinessProbe"]

    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    expected = {"path": "/v2/health/ready", "port": "http"}
    assert probe["httpGet"] == {**expected, **({"scheme": "HTTPS"} if "protected" in case else {})}
    # The probe notices in the first half of the time for leaving.
    noticed_s = probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"])
    if "program" not in case:
        assert noticed_s < options_of(releases[case]).exit_grace_s / 2


@pytest.mark.parametrize("case", CASES)
def test_ports_and_labels_fit_together(releases, case):
    release = releases[case]
    labels = release.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    by_name = {port["name"]: port["containerPort"] for port in container_of(release)["ports"]}

    for each in release.objects:
        spec = each["spec"]
        match each["kind"]:
            case "Service":
                assert spec["selector"].items() <= labels.items()
                assert all(by_name[port["targetPort"]] == port["port"] for port in spec["ports"])
            case "PodDisruptionBudget" | "PodMonitor":
                assert spec["selector"]["matchLabels"].items() <= labels.items()
            case "HorizontalPodAutoscaler" | "ScaledObject":
                name = release.one("Deployment")["metadata"]["name"]
                assert spec["scaleTargetRef"]["name"] == name


def test_models_are_at_the_same_place_in_servers_and_workers(releases):
    (server, _head, *workers) = [pod for each in releases[RAY].objects for pod in pods_of(each)]

    def mounts(pod):
        return {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}

    assert mounts(server) == {"/tmp": "temporary", "/models": "models"}
    assert workers
    assert all(mounts(worker) == mounts(server) for worker in workers)
    images = {c["image"] for pod in [server, *workers] for c in pod["containers"]}
    assert len(images) == 1


def test_server_on_ray_has_a_node_of_its_own_and_a_port_for_instances(releases):
    pod = releases[RAY].one("Deployment")["spec"]["template"]["spec"]
    cluster = releases[RAY].one("RayCluster")
    options = options_of(releases[RAY])
    (node,) = pod["initContainers"]
    address = f"{cluster['metadata']['name']}-head-svc:6379"

    assert (options.repository.executor, options.ray.address) == ("ray", address)
    assert not options.strict_readiness  # one instance less must not end its service
    assert f"--address={address}" in node["args"]
    assert "--num-cpus=0" in node["args"]
    assert node["restartPolicy"] == "Always"
    assert pod["shareProcessNamespace"] is True
    assert node["volumeMounts"][0] in pod["containers"][0]["volumeMounts"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert options.ray.instance_port == ports["instances"]
    assert options.ray.instance_address == "10.0.0.7"
    names = {variable["name"] for variable in pod["containers"][0]["env"]}
    assert {"POD_IP", "RAY_AUTH_TOKEN"} <= names


def test_other_image_is_refused_where_workers_would_keep_the_old_one():
    values = {"ray": {"enabled": True}, "image": {"tag": "2"}}
    cases = [values, {**values, "image": {"tag": "1"}}, {**values, "ray": RECREATED}]
    with cluster_with_ray("pytriton:1") as cluster:
        refused, same, recreated = render(*cases, cluster=cluster)

    assert "keep the image pytriton:1: install another release with pytriton:2" in refused.error
    assert "upgradeStrategy" not in same.one("RayCluster")["spec"]
    assert recreated.one("RayCluster")["spec"]["upgradeStrategy"] == {"type": "Recreate"}
    validate(recreated.one("RayCluster"))


def test_workers_with_gpus_have_them_for_ray_and_for_kubernetes(releases):
    cpu, gpu = releases[RAY].one("RayCluster")["spec"]["workerGroupSpecs"]

    def limits(group):
        return group["template"]["spec"]["containers"][0]["resources"]["limits"]

    assert (gpu["rayStartParams"]["num-gpus"], limits(gpu)["nvidia.com/gpu"]) == ("1", 1)
    assert (cpu["rayStartParams"]["num-gpus"], "nvidia.com/gpu" in limits(cpu)) == ("0", False)
    assert container_of(releases["gpus"])["resources"]["limits"]["nvidia.com/gpu"] == 2


def test_tag_of_an_image_may_look_like_a_number():
    tags = ["1", 1, 20270101, "1.10"]
    found = [container_of(each)["image"] for each in render(*({"image": {"tag": t}} for t in tags))]

    assert found == [f"pytriton:{tag}" for tag in tags]


def test_keys_come_from_secrets(releases):
    container = container_of(releases["secrets"])
    (variable,) = container["env"]

    assert variable["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "admin-key"}}
    assert any(a.endswith(":admin-key=$(ADMIN_KEY)") for a in container["args"])
    assert options_of(releases["secrets"]).http_restricted


def test_protected_server_has_its_certificate_and_its_policy(releases):
    release = releases["protected"]
    container, options = container_of(release), options_of(release)
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    (scrape,) = release.one("PodMonitor")["spec"]["podMetricsEndpoints"]

    assert options.tls.server_cert == f"{mounts['tls']}/tls.crt"
    assert options.tls.server_key == f"{mounts['tls']}/tls.key"
    assert options.access.config == f"{mounts['policy']}/auth.toml"
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}
    assert scrape["scheme"] == "https"
    assert "scheme" not in container_of(releases[ONE])["livenessProbe"]["httpGet"]


def test_program_gets_what_protects_it_by_variables(releases, monkeypatch):
    container = container_of(releases["a protected program"])
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    for variable in container["env"]:
        value = variable.get("value", "secret").replace("$(ADMIN_KEY)", "secret")
        monkeypatch.setenv(variable["name"], value)
    config = read_options(container["command"][2:]).server_config()
    options = ServerOptions.from_triton_config(TritonConfig.resolved(config).to_dict())

    assert options.http.address == "0.0.0.0"
    assert options.tls.server_cert == f"{mounts['tls']}/tls.crt"
    assert options.access.config == f"{mounts['policy']}/auth.toml"
    for group in (*options.http_restricted, *options.grpc_restricted):
        assert "model-repository" in group.apis
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_port_of_instances_is_open_for_workers_only(releases):
    policies = [e for e in releases["policies of ray"].objects if e["kind"] == "NetworkPolicy"]
    server, ray = [policy["spec"]["ingress"] for policy in policies]
    open_to_all = [rule for rule in server if "ports" not in rule]

    assert [port["port"] for rule in server for port in rule.get("ports", ())] == [
        "http",
        "grpc",
        "metrics",
    ]
    (rule,) = open_to_all
    selector = {"matchLabels": {"ray.io/cluster": "pytriton-ray"}}
    assert rule["from"] == [{"podSelector": selector}]
    assert SELECTED[0] in ray[0]["from"]


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda cluster: cluster["spec"].update(headGroup={}), "headGroup"),
        (lambda cluster: cluster["spec"].pop("headGroupSpec"), "headGroupSpec"),
        (lambda cluster: pods_of(cluster)[0]["containers"][0].update(comand=[]), "comand"),
    ],
)
def test_object_with_an_unknown_or_missing_field_is_not_valid(releases, change, reason):
    cluster = copy.deepcopy(releases[RAY].one("RayCluster"))
    change(cluster)

    with pytest.raises(Exception, match=reason):
        validate(cluster)


def test_every_value_is_used_and_explained():
    values = (CHART / "values.yaml").read_text()
    templates = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    named = set(re.findall(r"\.([a-zA-Z]+)", templates))

    def leaves(found):
        for name, value in found.items():
            yield name
            if isinstance(value, dict) and name != "resources":
                yield from leaves(value)

    assert set(leaves(yaml.safe_load(values))) <= named
    assert values.count("#") > 40


def test_command_helm_renders_the_same(releases):
    program = shutil.which("helm")
    if program is None:
        pytest.skip("helm is not installed; its library has rendered all of this")
    for mode in MODES:
        command = [program, "template", "pytriton", CHART, "--values", mode]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rendered = [each for each in yaml.safe_load_all(text) if each]

        def key(each):
            return each["kind"], each["metadata"]["name"]

        assert sorted(rendered, key=key) == sorted(releases[mode.stem].objects, key=key)
