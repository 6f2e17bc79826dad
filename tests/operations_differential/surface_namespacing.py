# SPDX-License-Identifier: Apache-2.0
"""Models of the same name in several repositories, and models that repository agents refuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.waiting import eventually
from tests.operations_differential.asking import both, metrics, over_grpc, over_http
from tests.operations_differential.models import write_model
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

_ADD = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds a number."""

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + NUMBER)]
            )
            for request in requests
        ]
'''

_CALL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls another model."""

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        called = pb_utils.InferenceRequest(
            model_name="NAME", requested_output_names=["OUTPUT0"], inputs=request.inputs()
        ).exec()
        if called.has_error():
            return pb_utils.InferenceResponse(error=called.error())
        return pb_utils.InferenceResponse(called.output_tensors())
'''

_TENSORS = """
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""


def write_adding(
    repository: Path, name: str, number: int, more: str = "", *, version: str = "1"
) -> Path:
    """A model that adds a number to its input."""
    code = _ADD.replace("NUMBER", str(number))
    return write_model(
        repository, name, code, f'backend: "python"\n{_TENSORS}{more}', version=version
    )


def write_calling(repository: Path, name: str, called: str) -> None:
    """A model that calls another."""
    config = f'backend: "python"\n{_TENSORS}'
    write_model(repository, name, _CALL.replace("NAME", called), config)


def write_ensemble(repository: Path, name: str, step: str, more: str = "") -> None:
    """An ensemble of one step."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        f'platform: "ensemble"\n{_TENSORS}ensemble_scheduling {{ step {{ model_name: "{step}" '
        f'model_version: -1 {more} input_map {{ key: "INPUT0" value: "INPUT0" }} '
        'output_map { key: "OUTPUT0" value: "OUTPUT0" } } }\n'
    )


def write_two(models: Path) -> None:
    """Two repositories with models of the same names, ensembles of them, and models that call."""
    first, second = models / "first", models / "second"
    write_adding(first, "same", 1)
    write_adding(second, "same", 20)
    write_adding(second, "same", 30, version="2")
    write_adding(first, "mine", 2)
    write_adding(second, "other", 40)
    write_ensemble(first, "pipe", "same")
    write_ensemble(second, "pipe", "same")
    write_ensemble(first, "pipe_first", "same")
    write_ensemble(second, "pipe_second", "same")
    write_ensemble(first, "pipe_other", "other")
    write_ensemble(first, "pipe_named", "same", f'model_namespace: "{second}"')
    write_calling(first, "call_same", "same")
    write_calling(first, "call_other", "other")


def write_refused(models: Path) -> None:
    """Models that cannot be loaded, and ensembles of them, in three repositories."""
    first, second, third = models / "first", models / "second", models / "third"
    write_adding(first, "half", 1, "nonsense")
    write_adding(second, "half", 2)
    write_adding(second, "twice", 1)
    write_adding(third, "twice", 2)
    write_ensemble(first, "pipe_twice", "twice")
    write_ensemble(first, "pipe_nothing", "nothing")
    write_ensemble(first, "pipe_moving", "moving")
    write_adding(second, "moving", 10)
    agents = 'model_repository_agents { agents [ { name: "NAME" parameters { PARAMETERS } } ] }'
    parameters = 'key: "MD5:1/model.py" value: "0"'
    for name in ("checksum", "other_agent"):
        text = agents.replace("NAME", name).replace("PARAMETERS", parameters)
        write_adding(first, f"agent_{name}", 1, text)


_TWO = ("--model-repository={models}/first", "--model-repository={models}/second")
_THREE = (*_TWO, "--model-repository={models}/third")
_LIVE = ("http", "/v2/health/live")
_TENSOR = {"name": "INPUT0", "datatype": "INT32", "shape": [1]}

WITHOUT = Setup((*_TWO, "--exit-on-error=false"), models=write_two, ready=_LIVE)
NAMESPACED = Setup((*_TWO, "--model-namespacing=true"), models=write_two)
EXPLICIT = Setup(
    (*_TWO, "--model-namespacing=true", "--model-control-mode=explicit"), models=write_two
)
STARTED = Setup(
    (
        *_TWO,
        "--model-namespacing=true",
        "--model-control-mode=explicit",
        "--load-model=same",
        "--load-model=mine",
    ),
    models=write_two,
)
REFUSED = Setup(
    (*_THREE, "--model-namespacing=true", "--model-control-mode=explicit"),
    models=write_refused,
)


def index(server: Server, **members: Any) -> Observation:
    """The index over both protocols; the rows of HTTP are those of gRPC, except for a namespace."""
    seen = both(server, "/v2/repository/index", members, "RepositoryIndex", members)
    for rows in (seen["HTTP"]["body"], seen["gRPC"].get("models", [])):
        for row in rows:
            row.pop("namespace", None)
    return seen


def settled_index(server: Server) -> Observation:
    """The index after all models that were unloaded have ended."""
    eventually(lambda: "UNLOADING" not in str(index(server)))
    return index(server)


def whole_index(server: Server) -> Observation:
    return both(server, "/v2/repository/index", {}, "RepositoryIndex")


def infer(model: str, version: str = "") -> Callable[[Server], Observation]:
    path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"

    def ask(server: Server) -> Observation:
        fields = {"model_name": model, "model_version": version}
        tensor = {**_TENSOR, "contents": {"int_contents": [0]}}
        return both(
            server,
            path,
            {"inputs": [{**_TENSOR, "data": [0]}]},
            "ModelInfer",
            {**fields, "inputs": [tensor]},
        )

    return ask


def about(model: str, part: str, method: str, version: str = "") -> Callable[[Server], Observation]:
    """A document about a model."""
    path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}{part}"
    return lambda server: both(server, path, None, method, {"name": model, "version": version})


def trace_settings(model: str) -> Callable[[Server], Observation]:
    path = f"/v2/models/{model}/trace/setting"
    return lambda server: both(server, path, None, "TraceSetting", {"model_name": model})


def generate(model: str) -> Callable[[Server], Observation]:
    return lambda server: over_http(server, f"/v2/models/{model}/generate", {"INPUT0": 0})


def control(
    action: str, model: str, *then: Callable[[Server], Observation], **parameters: Any
) -> Callable[[Server], Observation]:
    """Load or unload a model over HTTP, then ask."""

    def ask(server: Server) -> Observation:
        body = {"parameters": parameters} if parameters else {}
        done = over_http(server, f"/v2/repository/models/{model}/{action}", body)
        return [_without_reason(done), *(question(server) for question in then)]

    return ask


def _without_reason(seen: Observation) -> Observation:
    """Ours says in the answer why a model could not be read; the real one only in its log."""
    text = seen["body"]["error"] if isinstance(seen["body"], dict) else ""
    start, found, _ = text.partition("failed to poll from model repository")
    return {**seen, "body": {"error": start + found}} if found else seen


def control_over_grpc(method: str, model: str) -> Callable[[Server], Observation]:
    return lambda server: over_grpc(server, method, {"model_name": model})


def counted(server: Server) -> Observation:
    return metrics(server, "nv_inference_pending_request_count")


def refused_input(server: Server) -> Observation:
    tensor = {**_TENSOR, "datatype": "FP32", "data": [0]}
    return over_http(server, "/v2/models/mine/infer", {"inputs": [tensor]})


def ready(server: Server) -> Observation:
    return both(server, "/v2/health/ready", None, "ServerReady")


def moved(*, to: str) -> Callable[[Server], Observation]:
    """Another repository gets a model of the name of an ensemble's step."""

    def ask(server: Server) -> Observation:
        write_adding(server.repository / to, "moving", 70 if to == "third" else 50)
        ask_again = control("load", "moving", infer("moving"), infer("pipe_moving"))
        return ask_again(server)

    return ask


def gone(server: Server) -> Observation:
    shutil.rmtree(server.repository / "third" / "moving")
    return control("unload", "moving", infer("moving"), infer("pipe_moving"))(server)


NAMESPACED_CASES = {
    "index": index,
    "index of ready models": lambda server: index(server, ready=True),
    "index with all its members": whole_index,
    "server is ready": ready,
    "inference by an ambiguous name": infer("same"),
    "inference by an ambiguous name and version": infer("same", "1"),
    "inference by an unambiguous name": infer("mine"),
    "inference of the other repository's model": infer("other"),
    "inference by an unknown name": infer("nothing"),
    "inference by an unknown version": infer("mine", "7"),
    "inference by an identifier": lambda server: over_grpc(
        server,
        "ModelInfer",
        {
            "model_name": f"{server.repository}/second::same",
            "inputs": [{**_TENSOR, "contents": {"int_contents": [0]}}],
        },
    ),
    "inference with a wrong datatype": refused_input,
    "ambiguous ensemble": infer("pipe"),
    "ensemble of the first repository": infer("pipe_first"),
    "ensemble of the second repository": infer("pipe_second"),
    "ensemble with a step of the other repository": infer("pipe_other"),
    "ensemble that names a namespace": infer("pipe_named"),
    "model that calls an ambiguous one": infer("call_same"),
    "model that calls one of the other repository": infer("call_other"),
    "generate of an ambiguous model": generate("same"),
    "generate of an unambiguous model": generate("mine"),
    "metadata of an ambiguous model": about("same", "", "ModelMetadata"),
    "metadata of an unambiguous model": about("mine", "", "ModelMetadata"),
    "metadata of an unknown model": about("nothing", "", "ModelMetadata"),
    "metadata of an unknown version": about("mine", "", "ModelMetadata", "7"),
    "configuration of an ambiguous model": about("same", "/config", "ModelConfig"),
    "configuration of an unknown model": about("nothing", "/config", "ModelConfig"),
    "readiness of an ambiguous model": about("same", "/ready", "ModelReady"),
    "readiness of an unambiguous model": about("mine", "/ready", "ModelReady"),
    "statistics of an ambiguous model": about("same", "/stats", "ModelStatistics"),
    "statistics of an unknown version": about("mine", "/stats", "ModelStatistics", "7"),
    "trace settings of an ambiguous model": trace_settings("same"),
    "metrics have the namespace": counted,
}
EXPLICIT_CASES = {
    "nothing is loaded": index,
    "inference before a load": infer("same"),
    "load of an ambiguous name": control("load", "same", index, infer("same")),
    "unload of an ambiguous name": control("unload", "same", settled_index, infer("same")),
    "configuration after an unload": about("same", "/config", "ModelConfig"),
    "load of an unknown name": control("load", "nothing"),
    "unload of an unknown name": control("unload", "nothing"),
    "load of an unambiguous name": control("load", "mine", infer("mine")),
    "unload of an unambiguous name": control("unload", "mine", settled_index, infer("mine")),
    "load over gRPC": control_over_grpc("RepositoryModelLoad", "mine"),
    "unload over gRPC": control_over_grpc("RepositoryModelUnload", "mine"),
    "load of an ensemble": control("load", "pipe_first", infer("pipe_first"), infer("same")),
    "load of the other ensemble": control("load", "pipe_second", infer("pipe_second")),
    "both are loaded": settled_index,
    "unload of an ensemble and its step": control(
        "unload",
        "pipe_second",
        settled_index,
        infer("same"),
        infer("pipe_first"),
        unload_dependents=True,
    ),
    "load of two ensembles of one name": control("load", "pipe", infer("pipe"), infer("same")),
}
REFUSED_CASES = {
    "one of two models cannot be read": control("load", "half", infer("half")),
    "ensemble without its step": control("load", "pipe_nothing"),
    "ensemble with an ambiguous step": control("load", "pipe_twice"),
    "ensemble that is loaded": control("load", "pipe_moving", infer("pipe_moving")),
    "its step becomes ambiguous": moved(to="third"),
    "its own repository gets the step": moved(to="first"),
    "its steps are unloaded": gone,
    "checksum does not match": control("load", "agent_checksum"),
    "unknown repository agent": control("load", "agent_other_agent"),
    "index of refused models": settled_index,
}

SURFACE = Surface(
    "namespacing",
    cases=(
        Case("index without namespacing", index),
        Case("inference without namespacing", infer("same")),
        Case("inference of another model without namespacing", infer("mine")),
        *(Case(name, ask, NAMESPACED) for name, ask in NAMESPACED_CASES.items()),
        *(Case(name, ask, EXPLICIT) for name, ask in EXPLICIT_CASES.items()),
        Case("models of the command line", index, STARTED),
        *(Case(name, ask, REFUSED) for name, ask in REFUSED_CASES.items()),
    ),
    setup=WITHOUT,
)
