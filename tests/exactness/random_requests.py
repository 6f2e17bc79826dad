# SPDX-License-Identifier: Apache-2.0
"""Random requests over HTTP and gRPC: common forms that repeat with other values, and broken ones.

A fast path learns from requests that repeat. So a run has some forms, draws one for each request,
and fills in values, ids and parameters that differ from request to request.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.exactness.models import MODELS, ModelUnderTest

FORMS = 24  # of a run; so many that each comes often enough to be learned
BROKEN_SHARE = 0.12
SIZES = (1,) * 9 + (2,) * 9 + (4,) * 9 + (500,)  # the last one makes no small request
OTHER_NUMBERS = (0, 1, -1, 13, 7.5, 1e30, -0.0, 2**31, 2**63)
IDS = (
    "", "7", "a b", 'q"uote', "back\\slash", "Schlüssel-日本", "\n\t", "\u2028", "€" * 9,
)  # fmt: skip
TEXTS = (b"", b"a", b"a short text", b"another text", "日本".encode(), b'"\\\n')
PARAMETERS = (
    ("user", "somebody"), ("user", ""), ("n", 7), ("n", -(2**40)), ("yes", True), ("x", 0.25),
    ("text", 'a"b\\c\u00e9'), ("custom", "1"),
)  # fmt: skip
TIMEOUTS_US = (0, 60_000_000, 600_000_000)
HEADERS = (
    ("User-Agent", "python/gevent-http-client-2.6.1"), ("Content-Type", "application/json"),
    ("Content-Type", "application/octet-stream"), ("Accept", "*/*"), ("X-Custom", "1"),
    ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("Authorization", "Bearer abc"), ("Accept-Encoding", "identity"),
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """What requests that are alike have in common."""

    model: ModelUnderTest
    shapes: list[list[int]]
    binary: list[bool]  # for each input
    outputs: list[tuple[str, bool | None]] | None  # names, and whether they are binary
    binary_output: bool | None
    has_id: bool
    parameters: list[str]
    separators: tuple[str, str]
    order: list[str]
    headers: tuple[tuple[str, str], ...]
    has_version: bool
    timeout: str  # of gRPC


def random_form(dice: random.Random) -> Form:
    model = dice.choice(MODELS)
    rows = dice.choice([1, 1, 1, 2, 3])
    shapes = [[rows, dice.choice(SIZES) if dim < 0 else dim] for dim in model.dims]
    without_json = model.dtype in ("FP16", "BF16")
    is_binary = dice.random() < 0.6 or without_json
    is_mixed = dice.random() < 0.1 and not without_json
    binary = [dice.random() < 0.5 if is_mixed else is_binary for _ in model.dims]
    output_choices = [True] if without_json else [True, True, False, None]
    outputs = None
    if dice.random() < 0.6:
        names = dice.sample(model.outputs, dice.randint(1, len(model.outputs)))
        if dice.random() < 0.7:
            names = model.outputs
        choice = dice.choice(output_choices)
        outputs = [(name, choice) for name in names]
    parameters = []
    if dice.random() < 0.4:
        parameters = dice.sample(["priority", "timeout", "own", "more"], dice.randint(1, 3))
    order = ["id", "inputs", "outputs", "parameters"]
    if dice.random() < 0.2:
        dice.shuffle(order)
    return Form(
        model,
        shapes,
        binary,
        outputs,
        binary_output=True if without_json else dice.choice([None, True, False]),
        has_id=dice.random() < 0.5,
        parameters=parameters,
        separators=dice.choice([(",", ":"), (",", ":"), (", ", ": ")]),
        order=order,
        headers=tuple(dice.sample(HEADERS, dice.choice([0, 0, 1, 2]))),
        has_version=dice.random() < 0.1,
        timeout=dice.choice(["", "", "60S", "600000m", "3H"]),
    )


def random_values(dice: random.Random, model: ModelUnderTest, shape: list[int]) -> np.ndarray:
    count = int(np.prod(shape))
    if model.dtype == "BYTES":
        texts = [b"13" if dice.random() < 0.02 else dice.choice(TEXTS) for _ in range(count)]
        return np.array(texts, object).reshape(shape)
    if model.dtype == "BOOL":
        return np.array([dice.random() < 0.5 for _ in range(count)]).reshape(shape)
    numbers = [dice.choice([0, 1, 5, 100, dice.randrange(100)]) for _ in range(count)]
    if dice.random() < 0.02:
        numbers[0] = 13
    values = np.array(numbers).astype(model.numpy)
    if model.numpy.kind == "f" and dice.random() < 0.3:
        values = values / model.numpy.type(dice.choice([3, 7, -11]))
    if model.numpy.kind in "fi" and dice.random() < 0.1:
        values = -values
    if model.numpy.kind == "f" and dice.random() < 0.03:
        values[-1] = dice.choice([np.nan, np.inf, -np.inf])
    return values.reshape(shape)


def raw_bytes(values: np.ndarray) -> bytes:
    if values.dtype != object:
        return values.tobytes()
    return b"".join(struct.pack("<I", len(text)) + text for text in values.ravel())


def random_id(dice: random.Random) -> str:
    number, long_number = str(dice.randrange(10**6)), f"{dice.getrandbits(64):016x}"
    return dice.choice([number, long_number, dice.choice(IDS)])


def _parameters(dice: random.Random, form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in form.parameters:
        if kind == "priority":
            found["priority"] = dice.choice([0, 1, 2, 3])
        elif kind == "timeout":
            found["timeout"] = dice.choice(TIMEOUTS_US)
        else:
            name, value = dice.choice(PARAMETERS)
            found[name] = value
    return found


@dataclass
class HttpRequest:
    """A request that may still be broken before it is written."""

    form: Form
    document: dict[str, Any]
    tensors: list[bytes]
    header_length: int | None = None  # to add to the right one
    cut: int = 0  # bytes that are missing at the end of the body
    headers: tuple[tuple[str, str], ...] = ()
    ensure_ascii: bool = False

    def to_bytes(self) -> bytes:
        form = self.form
        text = json.dumps(self.document, separators=form.separators, ensure_ascii=self.ensure_ascii)
        head, tail = text.encode("utf-8", "surrogatepass"), b"".join(self.tensors)
        body = head + tail
        if self.cut:
            body = body[: -self.cut]
        version = "/versions/1" if form.has_version else ""
        lines = [f"POST /v2/models/{form.model.name}{version}/infer HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in (*form.headers, *self.headers)]
        if tail or self.header_length is not None:
            length = len(head) + (self.header_length or 0)
            lines.append(f"Inference-Header-Content-Length: {length}")
        lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http_request(dice: random.Random, form: Form) -> HttpRequest:
    parts: dict[str, Any] = {"inputs": []}
    tensors = []
    for name, shape, binary in zip(form.model.inputs, form.shapes, form.binary, strict=True):
        values = random_values(dice, form.model, shape)
        item: dict[str, Any] = {"name": name, "shape": shape, "datatype": form.model.dtype}
        if binary:
            raw = raw_bytes(values)
            item["parameters"] = {"binary_data_size": len(raw)}
            tensors.append(raw)
        else:
            flat = values.ravel().tolist()
            item["data"] = [v.decode() if isinstance(v, bytes) else v for v in flat]
        parts["inputs"].append(item)
    if form.has_id:
        parts["id"] = random_id(dice)
    if form.outputs is not None:
        parts["outputs"] = [
            {"name": name}
            if binary is None
            else {"name": name, "parameters": {"binary_data": binary}}
            for name, binary in form.outputs
        ]
    parameters = _parameters(dice, form)
    if form.binary_output is not None:
        parameters["binary_data_output"] = form.binary_output
    if parameters:
        parts["parameters"] = parameters
    document = {name: parts[name] for name in form.order if name in parts}
    request = HttpRequest(form, document, tensors)
    request.ensure_ascii = dice.random() < 0.5
    return request


def _some_input(dice: random.Random, request: HttpRequest) -> dict[str, Any]:
    found: dict[str, Any] = dice.choice(request.document["inputs"])
    return found


def _change_size(dice: random.Random, request: HttpRequest) -> None:
    parameters = _some_input(dice, request).setdefault("parameters", {"binary_data_size": 4})
    parameters["binary_data_size"] = dice.choice(
        [parameters["binary_data_size"] + dice.choice([-4, -1, 1, 4]), "4", -1, None, 1.5, 2**70]
    )


def _change_shape(dice: random.Random, request: HttpRequest) -> None:
    item = _some_input(dice, request)
    rows, *rest = item["shape"]
    item["shape"] = dice.choice(
        [[], [0], [rows, *rest, 1], [rows + 1, *rest], [-1, 1], ["1", 1], 5, [9, 1], [2**62, 4]]
    )  # fmt: skip


def _change_data(dice: random.Random, request: HttpRequest) -> None:
    item = _some_input(dice, request)
    if "data" in item:
        item["data"] = dice.choice(
            [[], [*item["data"], 1], item["data"][:-1], None, "x", [None], [[item["data"]]], [{}],
             [dice.choice(OTHER_NUMBERS)] * len(item["data"]), ["x"] * len(item["data"]),
             [True] * len(item["data"])]
        )  # fmt: skip
    else:
        item["data"] = [1]


def _change_input(dice: random.Random, request: HttpRequest) -> None:
    document, item = request.document, _some_input(dice, request)
    what = dice.randrange(7)
    if what == 0:
        item["name"] = dice.choice(["other", "", 7, None, "out0"])
    elif what == 1:
        item["datatype"] = dice.choice(["FP32", "INT8", "BYTES", "XYZ", 7, ""])
    elif what == 2:
        document["inputs"] = document["inputs"][:-1]
    elif what == 3:
        document["inputs"].append(dict(item))
    elif what == 4:
        item.pop(dice.choice(sorted(item)))
    elif what == 5:
        item["extra"] = dice.choice([1, "x", {}])
    else:
        document["inputs"] = dice.choice([None, {}, "x", [7]])


def _change_output(dice: random.Random, request: HttpRequest) -> None:
    request.document["outputs"] = dice.choice(
        [[{"name": "other"}], [{}], [7], {}, None, [{"name": "out0"}] * 2, [],
         [{"name": "out0", "parameters": {"binary_data": dice.choice([1, "true", None])}}],
         [{"name": "out0", "parameters": {"classification": dice.choice([1, 0, "2", -1])}}]]
    )  # fmt: skip


def _change_id(dice: random.Random, request: HttpRequest) -> None:
    request.document["id"] = dice.choice(
        [7, None, True, ["a"], {"a": 1}, "x" * 3000, "\ud800", "\0"]
    )


def _change_parameters(dice: random.Random, request: HttpRequest) -> None:
    name, value = dice.choice(
        [("priority", -1), ("priority", "1"), ("priority", 9), ("priority", 1.5), ("timeout", -1),
         ("timeout", "x"), ("timeout", 2**70), ("sequence_id", 3), ("sequence_id", "a"),
         ("sequence_start", True),
         ("binary_data_output", 1), ("binary_data_output", "true"), ("own", None), ("own", [1]),
         ("own", {"a": 1}), ("own", 2**70), ("triton_enable_empty_final_response", True)]
    )  # fmt: skip
    changed = {**request.document.get("parameters", {}), name: value}
    request.document["parameters"] = dice.choice([changed] * 6 + [None, [], "x"])


def _change_lengths(dice: random.Random, request: HttpRequest) -> None:
    if dice.random() < 0.5:
        request.header_length = dice.choice([-1, 1, -5, 3, 1000])
    else:
        request.cut = dice.choice([1, 2, 4, 30])


def _change_headers(dice: random.Random, request: HttpRequest) -> None:
    header = dice.choice(
        [("Accept-Encoding", "gzip"), ("Content-Encoding", "gzip"), ("Connection", "close"),
         ("Content-Encoding", "identity"), ("Expect", "100-continue"),
         ("Inference-Header-Content-Length", "x")]
    )  # fmt: skip
    request.headers = (*request.headers, header)


BREAKS: list[Callable[[random.Random, HttpRequest], None]] = [
    _change_size, _change_shape, _change_data, _change_input, _change_input, _change_output,
    _change_id, _change_parameters, _change_parameters, _change_lengths, _change_headers,
]  # fmt: skip


def random_http(dice: random.Random, forms: list[Form]) -> bytes:
    """The next request of a run."""
    # The first forms come most often.
    form = forms[min(int(dice.expovariate(6 / len(forms))), len(forms) - 1)]
    request = http_request(dice, form)
    if dice.random() < BROKEN_SHARE:
        dice.choice(BREAKS)(dice, request)
    return request.to_bytes()


@dataclass
class GrpcRequest:
    """The headers and the framed message of a call."""

    headers: list[tuple[str, str]]
    message: bytes


def random_grpc(dice: random.Random, forms: list[Form]) -> GrpcRequest:
    """The next call of a run."""
    form = forms[min(int(dice.expovariate(6 / len(forms))), len(forms) - 1)]
    message = service_pb2.ModelInferRequest(model_name=form.model.name)
    if form.has_version:
        message.model_version = "1"
    if form.has_id:
        message.id = random_id(dice)
    for name, value in _parameters(dice, form).items():
        _set_parameter(message.parameters[name], name, value)
    for name, shape in zip(form.model.inputs, form.shapes, strict=True):
        message.inputs.add(name=name, datatype=form.model.dtype, shape=shape)
        message.raw_input_contents.append(raw_bytes(random_values(dice, form.model, shape)))
    for name, _binary in form.outputs or ():
        message.outputs.add(name=name)
    headers = [("te", "trailers"), ("content-type", "application/grpc")]
    headers += [(name.lower(), value) for name, value in form.headers if name != "Content-Type"]
    if form.timeout:
        headers.append(("grpc-timeout", form.timeout))
    if dice.random() < 0.2:
        headers.append(("traceparent", f"00-{dice.getrandbits(128):032x}-00f067aa0ba902b7-01"))
    if dice.random() < BROKEN_SHARE:
        return GrpcRequest(*_broken_grpc(dice, headers, message))
    return GrpcRequest(headers, _framed(message.SerializeToString()))


def _set_parameter(parameter: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    elif name == "priority":
        parameter.uint64_param = value
    else:
        parameter.int64_param = value


def _framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def _broken_grpc(
    dice: random.Random, headers: list[tuple[str, str]], message: service_pb2.ModelInferRequest
) -> tuple[list[tuple[str, str]], bytes]:
    what = dice.randrange(14)
    if what == 0:
        headers = [*headers, ("grpc-timeout", dice.choice(["xS", "5", "123456789S"]))]
    elif what == 1:
        return headers, _framed(message.SerializeToString()[: -dice.choice([1, 3, 9])])
    elif what < 5:
        _break_contents(dice, message.raw_input_contents)
    elif what < 10:
        _break_tensor(dice, message.inputs)
    elif what == 10:
        message.outputs.add(name=dice.choice(["other", "out0"]))
    elif what == 11:
        message.model_version = dice.choice(["2", "x", "-1"])
    elif what == 12:
        message.parameters["priority"].string_param = "x"
    else:
        message.parameters["sequence_id"].int64_param = 5
    return headers, _framed(message.SerializeToString())


def _break_contents(dice: random.Random, contents: Any) -> None:
    what = dice.randrange(4)
    if what == 0:
        contents[0] += b"\0"
    elif what == 1:
        contents[-1] = contents[-1][:-1]
    elif what == 2:
        contents.append(b"")
    else:
        del contents[-1]


def _break_tensor(dice: random.Random, inputs: Any) -> None:
    what = dice.randrange(5)
    if what == 0:
        inputs[0].name = dice.choice(["other", "", "out0"])
    elif what == 1:
        inputs[0].datatype = dice.choice(["INT8", "FP64", "XYZ", ""])
    elif what == 2:
        inputs[0].shape.append(1)
    elif what == 3:
        inputs[0].shape[0] = dice.choice([0, 9, -1, 2**40])
    else:
        del inputs[-1]
