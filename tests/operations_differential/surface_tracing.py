# SPDX-License-Identifier: Apache-2.0
"""Trace settings and the files of traces."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client

from tests.e2e.waiting import eventually
from tests.operations_differential.asking import (
    both,
    int32_request,
    open_grpc,
    over_grpc,
    over_http,
)
from tests.operations_differential.models import write_common, write_mirror, write_model
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

NAMES = ("trace_level", "trace_rate", "trace_count", "log_frequency")
MODEL = "numbers"  # with settings of its own, in some cases
# Written by other threads than the rest: their order among the others varies.
_OF_FRONT_ENDS = ("HTTP_", "GRPC_", "INFER_RESPONSE_COMPLETE")


def path_of(model: str = "") -> str:
    return f"/v2/models/{model}/trace/setting" if model else "/v2/trace/setting"


def over_http_with(server: Server, changes: Any, model: str = "") -> Observation:
    return over_http(server, path_of(model), changes)


def over_grpc_with(server: Server, changes: Mapping[str, Any], model: str = "") -> Observation:
    settings = {}
    for name, value in changes.items():
        values = [] if value is None else value if isinstance(value, list) else [value]
        settings[name] = {"value": values}
    return over_grpc(server, "TraceSetting", {"settings": settings, "model_name": model})


@contextlib.contextmanager
def restored(server: Server) -> Iterator[None]:
    """Put the settings of the start back after a case."""
    try:
        yield
    finally:
        for model in (MODEL, ""):
            over_http_with(server, dict.fromkeys(NAMES), model)


def changed(*steps: tuple[str, Mapping[str, Any]]) -> Callable[[Server], Observation]:
    """A case: changes of models or of all, over both protocols, and what is known then."""

    def ask(server: Server) -> Observation:
        seen: dict[str, Observation] = {}
        for protocol, change in (("HTTP", over_http_with), ("gRPC", over_grpc_with)):
            with restored(server):
                answers = [change(server, changes, model) for model, changes in steps]
                after = {
                    name or "all": over_http(server, path_of(name))["body"] for name in ("", MODEL)
                }
                seen[protocol] = {"answers": answers, "after": after}
        return seen

    return ask


def told(body: Any, model: str = "") -> Callable[[Server], Observation]:
    """A case: a body over HTTP that may be no object of settings."""

    def ask(server: Server) -> Observation:
        with restored(server):
            return {
                "answer": over_http_with(server, body, model),
                "after": over_http(server, path_of(model)),
            }

    return ask


def traced(
    settings: Mapping[str, Any],
    count: int,
    work: Callable[[Server], Any],
    *,
    count_at_once: int | None = None,
) -> Callable[[Server], Observation]:
    """A case: what is in the files that appear when a server with these settings does some work.

    `count_at_once` of the requests are in files before the settings change again; default: all.
    """
    at_once = count if count_at_once is None else count_at_once

    def ask(server: Server) -> Observation:
        folder = Path(server.folder)
        before = set(folder.glob("trace.json*"))
        with restored(server):
            over_http_with(server, settings)
            work(server)
            found = lambda: _files(folder, before)  # noqa: E731
            eventually(lambda: sum(len(_ids(each)) for each in found()) >= at_once)
            last = over_http(server, path_of())["body"]
        eventually(lambda: sum(len(_ids(each)) for each in found()) >= count)
        return {"files": _described(found()), "settings": last}

    return ask


def _files(folder: Path, before: set[Path]) -> list[list[dict[str, Any]]]:
    paths = {path for path in folder.glob("trace.json*") if path.suffix != ".part"} - before
    found = []
    for path in sorted(paths, key=lambda path: (len(path.name), path.name)):
        with contextlib.suppress(ValueError):  # it is being written
            found.append(json.loads(path.read_bytes()))
    return found


def _ids(objects: list[dict[str, Any]]) -> list[int]:
    return list(dict.fromkeys(each["id"] for each in objects))


def _described(files: list[list[dict[str, Any]]]) -> Observation:
    """The requests of each file, numbered from 1 on in the order in which they came."""
    came = sorted({each["id"] for objects in files for each in objects})
    numbers = {each: at for at, each in enumerate(came, 1)}

    def requests(objects: list[dict[str, Any]]) -> Iterator[Observation]:
        for number in _ids(objects):
            yield _request(number, [each for each in objects if each["id"] == number], numbers)

    return [list(requests(objects)) for objects in files]


def _request(number: int, objects: list[dict[str, Any]], numbers: dict[int, int]) -> Observation:
    made: dict[str, Any] = {"id": numbers[number]}
    stamps = [stamp["name"] for each in objects for stamp in each.get("timestamps", ())]
    for each in objects:
        if "model_name" in each:
            # Triton's files have no costs, whose numbers differ from run to run.
            made |= {key: value for key, value in each.items() if key not in ("id", "cost")}
    if "parent_id" in made:
        made["parent_id"] = numbers[made["parent_id"]]
    made["model"] = [name for name in stamps if not name.startswith(_OF_FRONT_ENDS)]
    made["front end"] = [name for name in stamps if name.startswith(_OF_FRONT_ENDS)]
    made["tensors"] = [[each["activity"], each["tensor"]] for each in objects if "tensor" in each]
    made["one stamp in an object"] = all(
        len(each["timestamps"]) == 1 for each in objects if "timestamps" in each
    )
    return made


_CALLER = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls another model, with the trace of its request unless the first number is 0."""

    def execute(self, requests):
        responses = []
        for request in requests:
            passes_on = request.inputs()[0].as_numpy()[0] != 0
            call = pb_utils.InferenceRequest(
                model_name="numbers",
                inputs=request.inputs(),
                requested_output_names=["OUTPUT0"],
                request_id="call",
                trace=request.trace() if passes_on else None,
            )
            responses.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return responses
'''
_CONTEXT = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says what it sees of the trace of its request."""

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", np.array([str(request.trace().get_context())], object))]
            )
            for request in requests
        ]
'''
_STREAM = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends as many responses as the first number says."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            numbers = request.inputs()[0].as_numpy()
            for _ in range(numbers[0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
_TENSORS = """
    backend: "python"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_%s dims: -1 }
    %s
"""
_PIPE = """
    platform: "ensemble"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
    ensemble_scheduling {
      step {
        model_name: "numbers" model_version: -1
        input_map { key: "INPUT0" value: "INPUT0" }
        output_map { key: "OUTPUT0" value: "middle" }
      }
      step {
        model_name: "%s" model_version: -1
        input_map { key: "INPUT0" value: "middle" }
        output_map { key: "OUTPUT0" value: "OUTPUT0" }
      }
    }
"""
_TYPES = ("BOOL", "UINT16", "UINT32", "UINT64", "INT16", "INT64", "FP64")


def write_models(repository: Path) -> None:
    write_common(repository)
    for datatype in _TYPES:
        write_mirror(repository, f"type_{datatype}", datatype)
    write_model(repository, "caller", _CALLER, _TENSORS % ("INT32", ""))
    write_model(repository, "context", _CONTEXT, _TENSORS % ("STRING", ""))
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "stream", _STREAM, _TENSORS % ("INT32", decoupled))
    for name, step in (("pipe", "numbers"), ("broken_pipe", "failing")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_PIPE % step)


def settings(server: Server) -> Observation:
    return both(server, "/v2/trace/setting", None, "TraceSetting")


def asked(model: str = "numbers", *values: int, times: int = 1, **members: Any) -> Any:
    def work(server: Server) -> None:
        path, body = int32_request(model, values or (1, 2))
        for _ in range(times):
            over_http(server, path, {**body, **members})

    return work


def asked_twice(first: Any, second: Any) -> Any:
    def work(server: Server) -> None:
        first(server)
        second(server)

    return work


def asked_tensor(model: str, datatype: str, values: list[Any]) -> Any:
    def work(server: Server) -> None:
        tensor = {"name": "INPUT0", "datatype": datatype, "shape": [len(values)], "data": values}
        over_http(server, f"/v2/models/{model}/infer", {"inputs": [tensor]})

    return work


def asked_over_grpc(model: str = "numbers", *values: int, **options: Any) -> Any:
    def work(server: Server) -> None:
        with open_grpc(server) as client:
            client.infer(model, [_grpc_tensor(values or (1, 2))], **options)

    return work


def streamed(*values: int, **options: Any) -> Any:
    """A stream with one request, which sends as many responses as the first value says."""

    def work(server: Server) -> None:
        answers: list[Any] = []
        with open_grpc(server) as client:
            client.start_stream(lambda result, error: answers.append((result, error)))
            client.async_stream_infer("stream", [_grpc_tensor(values)], **options)
            eventually(lambda: len(answers) == values[0] + 1)
            client.stop_stream()

    return work


def _grpc_tensor(values: tuple[int, ...]) -> Any:
    tensor = grpc_client.InferInput("INPUT0", [len(values)], "INT32")
    tensor.set_data_from_numpy(np.array(values, np.int32))
    return tensor


def generated(model: str, action: str) -> Any:
    def work(server: Server) -> None:
        over_http(server, f"/v2/models/{model}/{action}", {"INPUT0": [1], "id": "made"})

    return work


def context_of_a_model(server: Server) -> Observation:
    path, body = int32_request("context")
    return over_http(server, path, body)


def _all(**changes: Any) -> tuple[str, Mapping[str, Any]]:
    return "", changes


def _one(**changes: Any) -> tuple[str, Mapping[str, Any]]:
    return MODEL, changes


_CHANGES = {
    "rate": [_all(trace_rate="7")],
    "rate of a model": [_one(trace_rate="7")],
    "rate of a model and of all": [_one(trace_rate="7"), _all(trace_rate="5")],
    "rate of a model cleared": [_one(trace_rate="7"), _all(trace_rate="5"), _one(trace_rate=None)],
    "rate of all cleared": [_all(trace_rate="5"), _all(trace_rate=None)],
    "rate that is no number": [_all(trace_rate="often")],
    "rate that is empty": [_all(trace_rate="")],
    "rate that is negative": [_all(trace_rate="-1")],
    "rate with a fraction": [_all(trace_rate="1.5")],
    "rate that is too large": [_all(trace_rate="4294967296")],
    "rate beyond all numbers": [_all(trace_rate="99999999999999999999999")],
    "rate with a sign": [_all(trace_rate="+7")],
    "rate with spaces": [_all(trace_rate=" 7 ")],
    "rate with zeros": [_all(trace_rate="007")],
    "rate zero": [_all(trace_rate="0")],
    "rate zero with the level off": [_all(trace_rate="0", trace_level=["OFF"])],
    "level after a rate of zero": [
        _all(trace_rate="0", trace_level=["OFF"]),
        _all(trace_level=["TIMESTAMPS"]),
    ],
    "count": [_all(trace_count="9")],
    "count of a model": [_one(trace_count="9")],
    "count without a limit": [_all(trace_count="-1")],
    "count that is too small": [_all(trace_count="-2")],
    "count that is too large": [_all(trace_count="2147483648")],
    "count that is no number": [_all(trace_count="many")],
    "count zero": [_all(trace_count="0")],
    "log frequency": [_all(log_frequency="3")],
    "log frequency of a model": [_one(log_frequency="3")],
    "log frequency zero": [_all(log_frequency="0")],
    "log frequency that is no number": [_all(log_frequency="x")],
    "log frequency that is too large": [_all(log_frequency="4294967296")],
    "level tensors": [_all(trace_level=["TENSORS"])],
    "levels in another order": [_all(trace_level=["TENSORS", "TIMESTAMPS"])],
    "level twice": [_all(trace_level=["TIMESTAMPS", "TIMESTAMPS"])],
    "level off": [_all(trace_level=["OFF"])],
    "level off and another": [_all(trace_level=["OFF", "TIMESTAMPS"])],
    "level off twice": [_all(trace_level=["OFF", "OFF"])],
    "level that is unknown": [_all(trace_level=["OFF"]), _all(trace_level=["EVERYTHING"])],
    "level of a model": [_all(trace_level=["OFF"]), _one(trace_level=["TIMESTAMPS"])],
    "level of a model cleared": [_one(trace_level=["OFF"]), _one(trace_level=None)],
    "level cleared": [_all(trace_level=["OFF"]), _all(trace_level=None)],
    "several settings": [_all(trace_rate="2", trace_count="3", log_frequency="4")],
    "one wrong of several settings": [_all(trace_rate="2", trace_count="many")],
    "file": [_all(trace_file="/tmp/other.json")],
    "file cleared": [_all(trace_file=None)],
    "file of a model": [_one(trace_file="/tmp/other.json")],
    "file after another setting": [_all(trace_rate="9", trace_file="/tmp/other.json")],
    "mode": [_all(trace_mode="opentelemetry")],
    "unknown setting": [_all(nothing="1")],
    "unknown model": [("nowhere", {"trace_rate": "1"})],
    "unknown model and file": [("nowhere", {"trace_file": "x"})],
    "nothing for an unknown model": [("nowhere", {})],
    "nothing": [_all()],
}
_BODIES = {
    "number as rate": {"trace_rate": 5},
    "list as rate": {"trace_rate": ["5"]},
    "boolean as count": {"trace_count": True},
    "text as level": {"trace_level": "TIMESTAMPS"},
    "number as level": {"trace_level": [1]},
    "null in the levels": {"trace_level": [None]},
    "number as file": {"trace_file": 5},
    "empty body": b"",
    "body that is no JSON": b"{",
    "body that is an array": b"[]",
    "body that is null": b"null",
}
_ON = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
_TENSORS_ON = {"trace_level": ["TENSORS"], "trace_rate": "1"}
_VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT16": [-32768, 32767],
    "INT64": [-(2**63), 2**63 - 1],
    "FP64": [0.1, 1e300, -1e-10, 3, 123456789.123456789, 0.30000000000000004],
}
_FILES = {
    "request over HTTP": traced(_ON, 1, asked(id="seven")),
    "request without an id": traced(_ON, 1, asked()),
    "request over gRPC": traced(_ON, 1, asked_over_grpc(request_id="seven")),
    "failed request": traced(_ON, 1, asked("failing")),
    "refused request": traced(
        _ON, 1, asked_twice(asked_tensor("numbers", "FP32", [1]), asked(id="after"))
    ),
    "ensemble": traced(_ON, 3, asked("pipe", id="whole")),
    "ensemble that fails": traced(_ON, 3, asked("broken_pipe")),
    "call of a model": traced(_ON, 2, asked("caller", id="outer")),
    "call without its trace": traced(_ON, 1, asked("caller", 0)),
    "generate": traced(_ON, 1, generated("numbers", "generate")),
    "stream of two": traced(_ON, 1, streamed(2, 5, enable_empty_final_response=True)),
    "stream of none": traced(_ON, 1, streamed(0, 5, enable_empty_final_response=True)),
    "rate of two": traced({**_ON, "trace_rate": "2"}, 2, asked(times=5)),
    "count of two": traced({**_ON, "trace_count": "2"}, 2, asked(times=3)),
    "count of two in one file": traced(
        {**_ON, "trace_count": "2", "log_frequency": "0"}, 2, asked(times=3)
    ),
    "log frequency of two": traced(
        {**_ON, "log_frequency": "2"}, 3, asked(times=3), count_at_once=2
    ),
    "tensors of a request": traced(_TENSORS_ON, 1, asked(id="seven")),
    "tensors and times": traced(
        {**_TENSORS_ON, "trace_level": ["TENSORS", "TIMESTAMPS"]}, 1, asked()
    ),
    "tensors of an ensemble": traced(_TENSORS_ON, 3, asked("pipe")),
    "tensors of a call": traced(_TENSORS_ON, 2, asked("caller")),
    "tensors of a failed request": traced(_TENSORS_ON, 1, asked("failing")),
    "tensors of a stream": traced(_TENSORS_ON, 1, streamed(2, 5, enable_empty_final_response=True)),
    "tensors of texts": traced(
        _TENSORS_ON, 1, asked_tensor("texts", "BYTES", ["abc", "", "a,b", "\u00e9"])
    ),
    **{
        f"tensors of {datatype}": traced(
            _TENSORS_ON, 1, asked_tensor(f"type_{datatype}", datatype, values)
        )
        for datatype, values in _VALUES.items()
    },
}
_ON_AT_START = Setup(
    options=(
        "--trace-config=triton,file={folder}/trace.json",
        "--trace-config=triton,log-frequency=1",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1000",
    ),
    models=write_models,
)
_WITHOUT_A_FILE = Setup(options=("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"))

SURFACE = Surface(
    "tracing",
    cases=(
        *(Case(name, changed(*steps)) for name, steps in _CHANGES.items()),
        *(Case(name, told(body)) for name, body in _BODIES.items()),
        *(Case(f"file of a {name}", ask) for name, ask in _FILES.items()),
        Case("context that a model sees", context_of_a_model),
        Case("settings with a file", settings),
        Case("settings at the start", settings, Setup()),
        Case("level without a file", changed(_all(trace_level=["TIMESTAMPS"])), Setup()),
        Case("rate without a file", changed(_all(trace_rate="3")), Setup()),
        Case("settings of a level without a file", settings, _WITHOUT_A_FILE),
        Case(
            "level off and on without a file",
            changed(_all(trace_level=["OFF"]), _all(trace_level=["TIMESTAMPS"])),
            _WITHOUT_A_FILE,
        ),
    ),
    setup=_ON_AT_START,
)
