# SPDX-License-Identifier: Apache-2.0
"""What a scenario uses: a model of its own, its gate and journal, and clients of every kind."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import queue
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from pytriton.base.protos import service_pb2
from tests.e2e.waiting import DEADLINE_S, eventually, whole_lines
from tests.recorded_suite import Observation, Server

RECORDER = Path(__file__).parent.joinpath("model_repository/recorder/1/model.py").read_text()
PENDING = "nv_inference_pending_request_count"
FAILURES = "nv_inference_request_failure"
LINE_NUMBER = re.compile(r"\(\d+\): ")
SETTLING_US = 200_000
SERVICE = "/inference.GRPCInferenceService"

Id = int | str


@dataclasses.dataclass
class Sent:
    """A request that was sent, and what came for it."""

    name: str
    answers: list[Observation] = dataclasses.field(default_factory=list)
    is_done: threading.Event = dataclasses.field(default_factory=threading.Event)
    cancel: Callable[[], object] = lambda: None

    def wait(self) -> Observation:
        """What came; one answer as it is, others as a list."""
        if not self.is_done.wait(DEADLINE_S):
            return "no answer"
        return self.answers[0] if len(self.answers) == 1 else self.answers


class Rig:
    """One scenario's model and clients."""

    def __init__(self, server: Server, model: str) -> None:
        self.server = server
        self.model = model
        self.folder = server.repository / model
        self.sent: list[Sent] = []
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc}")
        self.streams: dict[str, Stream] = {}
        self.exits = contextlib.ExitStack()

    # The model

    def load(
        self, config: str, source: str = RECORDER, files: dict[str, bytes] | None = None
    ) -> Observation:
        """Write the model and load it; what the server said if it refused."""
        (self.folder / "1").mkdir(parents=True, exist_ok=True)
        (self.folder / "1" / "model.py").write_text(source)
        for path, content in (files or {}).items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(content)
        (self.folder / "config.pbtxt").write_text(f'name: "{self.model}"\n' + config)
        return self.post(f"/v2/repository/models/{self.model}/load")

    def unload(self) -> Observation:
        return self.post(f"/v2/repository/models/{self.model}/unload")

    def close_gate(self) -> None:
        (self.folder / "gate").touch()

    def open_gate(self) -> None:
        (self.folder / "gate").unlink(missing_ok=True)

    def journal(self) -> list[Any]:
        return [json.loads(line) for line in whole_lines(self.folder / "journal")]

    def executions(self, count: int) -> None:
        """Wait until so many executions have begun."""
        if not eventually(lambda: len(self.journal()) >= count):
            raise TimeoutError(f"expected {count} executions, found {len(self.journal())}")

    def pending(self, count: int) -> None:
        """Wait until so many requests wait in the server."""
        if not eventually(lambda: self.metric(PENDING) == count):
            raise TimeoutError(f"expected {count} pending, found {self.metric(PENDING)}")

    def cancellation(self) -> None:
        """Wait until the server knows that a request was cancelled, which ours counts at once."""
        if self.server.is_real:
            self.let_pass(SETTLING_US)
        elif not eventually(lambda: self.metric(FAILURES, 'reason="CANCELED"') >= 1):
            raise TimeoutError("expected a cancelled request, found none")

    def let_pass(self, duration_us: int) -> None:
        """Let time pass, where time is what a scenario is about."""
        eventually(lambda: False, duration_us / 1e6)

    def settled(self, read: Callable[[], Observation]) -> Observation:
        """What is read when it no longer changes: requests are counted after their answers."""
        before, seen = None, read()
        while seen != before:
            self.let_pass(SETTLING_US)
            before, seen = seen, read()
        return seen

    def metric(self, family: str, labels: str = "") -> float:
        address = f"http://127.0.0.1:{self.server.metrics}/metrics"
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(family + "{") and f'model="{self.model}"' in line and labels in line
        )

    def batches(self, *, by_instance: bool = False) -> Observation:
        """The executions, each as its instance and its requests: name, id, flags and value.

        Those of one instance after the other, where they run side by side.
        """
        seen = [
            [entry["instance"], *(_short(request) for request in entry["batch"])]
            for entry in self.journal()
        ]
        if not by_instance:
            return seen
        names = dict.fromkeys(line[0] for line in seen)
        return [[line[1:] for line in seen if line[0] == name] for name in names]

    def inputs(self) -> Observation:
        """What the model saw of each request: every input; null requests have no values."""
        return [
            [
                request if _is_null(request) is False else _shapes(request)
                for request in entry["batch"]
            ]
            for entry in self.journal()
        ]

    def hold(self, sequence: int = 1000, *, end: bool = True, **options: Any) -> None:
        """Close the gate and let a sequence of one request wait there."""
        begun = len(self.journal())
        self.close_gate()
        self.call(sequence, 0, start=True, end=end, name="hold", **options)
        self.executions(begun + 1)

    # HTTP

    def get(self, path: str) -> Observation:
        return self.http("GET", path)

    def post(self, path: str, body: Any = None) -> Observation:
        return self.http("POST", path, body)

    def http(self, method: str, path: str, body: Any = None) -> Observation:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read().decode()
        return [response.status, self.normal(text)]

    def normal(self, text: str) -> str:
        """A text without what differs from one scenario, run or edit of the model to the next."""
        text = text.replace(str(self.server.repository), "<models>")
        return LINE_NUMBER.sub("(N): ", re.sub(rf"\b{self.model}\b", "<model>", text))

    def infer_body(self, value: int, shape: list[int], **parameters: Any) -> dict[str, Any]:
        return {
            "parameters": parameters,
            "inputs": [{"name": "VALUE", "datatype": "INT32", "shape": shape, "data": [value]}],
        }

    # gRPC

    def message(
        self,
        sequence: Id | None,
        value: int = 1,
        *,
        start: bool = False,
        end: bool = False,
        shape: tuple[int, ...] = (1, 1),
        name: str = "",
        timeout: int = 0,
        priority: int = 0,
        outputs: tuple[str, ...] = (),
    ) -> Any:
        request = service_pb2.ModelInferRequest(model_name=self.model, id=name)
        if isinstance(sequence, str):
            request.parameters["sequence_id"].string_param = sequence
        elif sequence is not None:
            request.parameters["sequence_id"].int64_param = sequence
        if start:
            request.parameters["sequence_start"].bool_param = True
        if end:
            request.parameters["sequence_end"].bool_param = True
        if timeout:
            request.parameters["timeout"].int64_param = timeout
        if priority:
            request.parameters["priority"].uint64_param = priority
        tensor = request.inputs.add(name="VALUE", datatype="INT32", shape=shape)
        del tensor
        for output in outputs:
            request.outputs.add(name=output)
        request.raw_input_contents.append(np.full(shape, value, "<i4").tobytes())
        return request

    def call(self, sequence: Id | None, value: int = 1, **options: Any) -> Sent:
        """Send one request with ModelInfer."""
        sent = self._named(options)
        method = self.channel.unary_unary(
            f"{SERVICE}/ModelInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelInferResponse.FromString,
        )
        deadline_s = options.pop("deadline_s", DEADLINE_S)
        future = method.future(self.message(sequence, value, **options), timeout=deadline_s)
        sent.cancel = future.cancel

        def done(finished: Any) -> None:
            try:
                sent.answers.append(self.shown(finished.result()))
            except grpc.FutureCancelledError:
                sent.answers.append({"error": "cancelled by the client"})
            except grpc.RpcError as error:
                sent.answers.append(
                    {"status": error.code().name, "error": self.normal(error.details() or "")}
                )
            sent.is_done.set()

        future.add_done_callback(done)
        return sent

    def queue(self, sequence: Id | None, value: int = 1, **options: Any) -> Sent:
        """Send one request that has to wait, and see it wait: so arrivals have an order."""
        before = self.metric(PENDING)
        sent = self.call(sequence, value, **options)
        self.pending(int(before) + 1)
        return sent

    def stream(self, sequence: Id | None, value: int = 1, *, on: str = "", **options: Any) -> Sent:
        """Send one request on a stream, which is opened at first."""
        if on not in self.streams:
            self.streams[on] = Stream(self)
        sent = self._named(options)
        self.streams[on].send(sent, self.message(sequence, value, **options))
        return sent

    def _named(self, options: dict[str, Any]) -> Sent:
        name = options.setdefault("name", str(len(self.sent)))
        sent = Sent(name)
        self.sent.append(sent)
        return sent

    def shown(self, response: Any) -> Observation:
        values: dict[str, Any] = {}
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            if output.datatype == "BYTES":
                values[output.name] = raw[4:].decode()
            else:
                kind = {"INT32": "<i4", "FP32": "<f4", "INT64": "<i8"}[output.datatype]
                values[output.name] = np.frombuffer(raw, kind).tolist()
        return values

    def answers(self) -> Observation:
        """What came for every request, in the order in which they were sent.

        Which of several instances is the first is chance: they are named as they appear.
        """
        names: dict[str, str] = {}
        for entry in self.journal():
            names.setdefault(entry["instance"], f"0_{len(names)}")
        seen = {sent.name: sent.wait() for sent in self.sent}
        for answer in seen.values():
            if isinstance(answer, dict) and "INSTANCE" in answer:
                answer["INSTANCE"] = names[answer["INSTANCE"]]
        return seen

    def close(self) -> None:
        self.open_gate()
        for stream in self.streams.values():
            stream.close()
        self.channel.close()


class Stream:
    """A ModelStreamInfer call whose requests are sent as a scenario goes on."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.requests: queue.Queue[Any] = queue.Queue()
        self.sent: dict[str, Sent] = {}
        method = rig.channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelStreamInferResponse.FromString,
        )
        self.call = method(iter(self.requests.get, None), timeout=2 * DEADLINE_S)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def send(self, sent: Sent, message: Any) -> None:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        self.sent[sent.name] = sent
        sent.cancel = self.call.cancel
        self.requests.put(message)

    def _read(self) -> None:
        try:
            for answer in self.call:
                self._take(answer)
        except grpc.RpcError as error:
            for sent in self.sent.values():
                if not sent.is_done.is_set():
                    sent.answers.append({"stream": error.code().name})
                    sent.is_done.set()

    def _take(self, answer: Any) -> None:
        response = answer.infer_response
        sent = self.sent[response.id]
        is_final = response.parameters["triton_final_response"].bool_param
        if answer.error_message:
            sent.answers.append({"error": self.rig.normal(answer.error_message)})
            is_final = True
        elif response.outputs or not is_final:
            sent.answers.append(self.rig.shown(response))
        if is_final:
            sent.is_done.set()

    def close(self) -> None:
        self.requests.put(None)
        self.thread.join(5)
        self.call.cancel()


def _is_null(request: Any) -> bool:
    return not request["id"] and not request["corrid"]


def _shapes(request: Any) -> Observation:
    """A null request: its control inputs, and the shape of the others, which may hold anything."""
    controls = {"START", "READY", "END", "CORRID"}
    return {
        name: value if name in controls else value[:2] for name, value in request["inputs"].items()
    }


def _short(request: Any) -> str:
    if _is_null(request):
        return "null"
    value = request["inputs"]["VALUE"]
    flags = ("", " start", " end", " start end")[request["flags"]]
    shape = "" if value[1] in ([1], [1, 1]) else f" {value[1]}"
    return f"{request['id']}: {request['corrid']}{flags} {value[2][0]}{shape}"


@contextlib.contextmanager
def rig(server: Server, model: str) -> Iterator[Rig]:
    made = Rig(server, model)
    try:
        yield made
    finally:
        made.close()
