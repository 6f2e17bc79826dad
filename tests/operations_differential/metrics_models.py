# SPDX-License-Identifier: Apache-2.0
"""The models whose metrics are compared, and the pages that show them."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

from tests.e2e.waiting import eventually
from tests.operations_differential.asking import over_http
from tests.operations_differential.models import (
    write_common,
    write_failing,
    write_mirror,
    write_model,
)
from tests.operations_differential.server import Observation, Server

_STREAM = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with as many responses as the input says."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            for _ in range(int(tensor.as_numpy()[0])):
                output = pb_utils.Tensor("OUTPUT0", tensor.as_numpy())
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
_RAISING = '''
class TritonPythonModel:
    """Raises for every batch."""

    def execute(self, requests):
        raise ValueError("raised as asked")
'''
_CUSTOM = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Has metrics of its own."""

    def initialize(self, args):
        kinds = pb_utils.MetricFamily
        self.families = [
            kinds("own_counter", "counts", kinds.COUNTER),
            kinds("own_gauge", "is set", kinds.GAUGE),
            kinds("own_histogram", "observes", kinds.HISTOGRAM),
        ]
        counter, gauge, histogram = self.families
        self.counter = counter.Metric(labels={"b": "2", "a": "1"})
        self.gauge = gauge.Metric(labels={"text": 'quoted "x"'})
        self.histogram = histogram.Metric(labels={"x": "y"}, buckets=[0.5, 1, 2.5])

    def execute(self, requests):
        self.counter.increment(len(requests))
        self.gauge.set(-1.5)
        self.histogram.observe(0.75)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", tensor.as_numpy()) for tensor in request.inputs()]
            )
            for request in requests
        ]
'''
_TENSORS = """
    input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""
_STEP = """step {{ model_name: "{model}" model_version: -1
    input_map {{ key: "INPUT0" value: "INPUT0" }}
    output_map {{ key: "OUTPUT0" value: "OUTPUT0" }} }}"""
_NUMBER = re.compile(r"(?<= )[0-9.e+-]+$")


def write_observed(repository: Path) -> None:
    """Models of all kinds that differ in their metrics."""
    write_common(repository)
    tags = 'metric_tags { key: "team" value: "blue" } metric_tags { key: "model" value: "q\\"z" }'
    write_mirror(repository, "tagged", "INT32", more=tags)
    write_mirror(repository, "caching", "INT32", more="response_cache { enable: true }")
    folder = write_mirror(repository, "versions", "INT32", more="version_policy { all { } }")
    shutil.copytree(folder / "1", folder / "2")
    write_failing(repository, "failing_step")
    config = f'backend: "python"{_TENSORS}'
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "stream", _STREAM, config + decoupled)
    write_model(repository, "raising", _RAISING, config)
    write_model(repository, "custom", _CUSTOM, config)
    write_mirror(repository, "reloaded", "INT32")
    for name, model in (("ensemble", "pair_of_ensemble"), ("broken_ensemble", "failing_step")):
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        steps = f"ensemble_scheduling {{ {_STEP.format(model=model)} }}"
        (folder / "config.pbtxt").write_text(f'platform: "ensemble"{_TENSORS}{steps}')
    write_mirror(repository, "pair_of_ensemble", "INT32")


def page(server: Server) -> list[str]:
    """The lines of the metrics page; the real server opens this port after that of HTTP."""
    assert eventually(lambda: _is_open(server.ports["metrics"]))
    text: str = over_http(server, "/metrics", port="metrics")["body"]
    return text.splitlines()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def series(server: Server, *names: str, model: str = "") -> Observation:
    """The lines of families with exactly these names, of one model or of all, sorted."""
    starts = tuple(start for name in names for start in (f"{name}{{", f"{name} "))
    wanted = f'model="{model}"' if model else ""
    return sorted(line for line in page(server) if line.startswith(starts) and wanted in line)


def without_values(lines: list[str]) -> list[str]:
    """Lines whose values depend on the time that something took."""
    return [_NUMBER.sub("<number>", line) for line in lines]


def heads(server: Server, kind: str = "") -> Observation:
    """The help and type lines in the order of the page, of one kind or of all.

    Those about clients that have to wait, and about limits, are left out, as Triton has none.
    """
    own = (" nv_accept_", " nv_limit_")
    lines = [line for line in page(server) if not any(name in line for name in own)]
    shown = {line.split()[2] for line in lines if line.startswith("# TYPE") and kind in line}
    return [line for line in lines if line.startswith("# ") and line.split()[2] in shown]
