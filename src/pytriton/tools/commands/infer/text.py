# SPDX-License-Identifier: Apache-2.0
"""Answers and signatures as text for people and as JSON for programs."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.client.kserve.records import ModelAnswer, NamedArray
from pytriton.tools.commands.model_cards import ModelCard, TensorCard

_THRESHOLD = 200  # of elements: arrays with more are shortened
_LONG_TEXT = 2000  # of characters: texts with more are shortened
_SHOWN_BYTES = 16
_INDENT = "  "


def answer_text(answer: ModelAnswer, took_ms: float, width: int) -> str:
    """Returns an answer for people, with a line about the model and the time."""
    who = f"{answer.model} version {answer.version}" if answer.version else answer.model
    head = f"{who}, {_duration(took_ms)}"
    if answer.request_id:
        head += f", id {answer.request_id}"
    return "\n".join([head, *_body(answer, width)])


def response_text(answer: ModelAnswer, number: int, took_ms: float, width: int) -> str:
    """Returns one response of a stream for people: one line if its outputs are short."""
    body = _body(answer, width - 18)
    head = f"#{number:<3} {_duration(took_ms):>8}"
    if len(body) == 1:
        return head + body[0]
    return "\n".join([head, *body])


def _body(answer: ModelAnswer, width: int) -> list[str]:
    names = max((len(output.name) for output in answer.outputs), default=0)
    kinds = [f"{output.datatype} {_shape(output.array.shape)}" for output in answer.outputs]
    column = max(map(len, kinds), default=0)
    lines: list[str] = []
    for output, kind in zip(answer.outputs, kinds, strict=True):
        head = f"{_INDENT}{output.name:<{names}}  {kind:<{column}}  "
        value = value_text(output, width - len(_INDENT) * 2)
        if "\n" not in value and len(head) + len(value) <= max(width, 60):
            lines.append(head + value)
        else:
            lines.append(head.rstrip())
            lines += [f"{_INDENT * 2}{line}" for line in value.split("\n")]
    lines += [
        f"{_INDENT}parameter {name}: {json.dumps(setting)}"
        for name, setting in answer.parameters.items()
    ]
    return lines or [f"{_INDENT}no outputs"]


def _duration(milliseconds: float) -> str:
    if milliseconds >= 10_000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def value_text(tensor: NamedArray, width: int = 80) -> str:
    """Returns the values of a tensor, shortened as numpy does; a single value stands alone."""
    array = tensor.array
    if tensor.datatype == "BYTES":
        if array.size == 1:
            return _one_text(array.reshape(-1)[0], quoted=False)
        array = _quoted(array)
    elif array.size == 1:
        return str(array.reshape(-1)[0].item())
    return np.array2string(
        array,
        max_line_width=max(width, 40),
        threshold=_THRESHOLD,
        separator=", ",
        formatter={"object": str},
    )


def _quoted(array: NDArray[Any]) -> NDArray[Any]:
    quoted = np.empty(array.size, dtype=object)
    quoted[:] = [_one_text(each, quoted=True) for each in array.reshape(-1).tolist()]
    return quoted.reshape(array.shape)


def _one_text(element: bytes, *, quoted: bool) -> str:
    try:
        text = element.decode()
    except UnicodeDecodeError:
        shown = element[:_SHOWN_BYTES].hex(" ")
        more = " ..." if len(element) > _SHOWN_BYTES else ""
        return f"<{len(element)} bytes: {shown}{more}>"
    if len(text) > _LONG_TEXT:
        text = f"{text[:_LONG_TEXT]}... ({len(text)} characters)"
    return json.dumps(text, ensure_ascii=False) if quoted else _harmless(text)


def _harmless(text: str) -> str:
    """Escape what a terminal would obey, such as codes that move its cursor."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text
    )


def plain_value(tensor: NamedArray) -> str:
    """Returns nothing but the values, whole: text as it is, numbers as JSON."""
    if tensor.datatype == "BYTES" and tensor.array.size == 1:
        return bytes(tensor.array.reshape(-1)[0]).decode(errors="backslashreplace")
    entry = _entry(tensor)
    return json.dumps(entry.get("data", entry.get("data_base64")))


def answer_document(answer: ModelAnswer) -> dict[str, Any]:
    """Returns an answer as the JSON of KServe; bytes that are no text are in base64."""
    document: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version}
    if answer.request_id:
        document["id"] = answer.request_id
    if answer.parameters:
        document["parameters"] = dict(answer.parameters)
    document["outputs"] = [_entry(output) for output in answer.outputs]
    return document


def _entry(tensor: NamedArray) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.array.shape),
    }
    if tensor.datatype != "BYTES":
        array = tensor.array if tensor.array.dtype.kind in "biuf" else tensor.array.astype(float)
        return {**entry, "data": array.tolist()}
    elements = [bytes(each) for each in tensor.array.reshape(-1).tolist()]
    try:
        texts = np.empty(len(elements), dtype=object)
        texts[:] = [each.decode() for each in elements]
        return {**entry, "data": texts.reshape(tensor.array.shape).tolist()}
    except UnicodeDecodeError:
        return {**entry, "data_base64": [base64.b64encode(each).decode() for each in elements]}


def signature_text(card: ModelCard, address: str) -> str:
    """Returns what a model takes and gives, and a line that asks it."""
    kinds = traits(card)
    head = f"{card.name}{f' version {card.version}' if card.version else ''}"
    lines = [f"{head}{f' ({kinds})' if kinds else ''}"]
    for title, tensors in (("inputs", card.inputs), ("outputs", card.outputs)):
        lines.append(f"{_INDENT}{title}:")
        names = max((len(tensor.name) for tensor in tensors or ()), default=0)
        lines += [f"{_INDENT * 2}{_tensor_line(tensor, names)}" for tensor in tensors or ()]
    return "\n".join([*lines, "", f"Ask it: {example_line(card, address)}"])


def _tensor_line(tensor: TensorCard, names: int) -> str:
    kind = f"{tensor.name:<{names}}  {tensor.datatype} {_shape(tensor.shape)}"
    return f"{kind}  optional" if tensor.is_optional else kind


def traits(card: ModelCard) -> str:
    """Returns what is special about a model: batches, streams, sequences, steps."""
    found = []
    if card.max_batch_size:
        found.append(f"batches of up to {card.max_batch_size}")
    if card.is_decoupled:
        found.append("streams")
    if card.is_sequence:
        found.append("sequences")
    if card.steps:
        found.append(f"ensemble of {' → '.join(card.steps)}")
    return ", ".join(found)


def example_line(card: ModelCard, address: str) -> str:
    """Returns a command that asks a model, with values that fit its inputs."""
    required = [tensor for tensor in card.inputs or () if not tensor.is_optional]
    parts = ["pytriton", "infer", card.name]
    for tensor in required or card.inputs or ():
        sizes = tensor.shape[1:] if card.has_batches else tensor.shape
        parts.append(f"{tensor.name}={_example(tensor.datatype, sizes)}")
    if card.is_sequence:
        parts += ["--sequence-id=1", "--start"]
    if address not in ("http://localhost:8000", "localhost"):
        parts += ["-u", address]
    return shlex.join(parts)


def _example(datatype: str, sizes: Sequence[int]) -> str:
    element: Any = {"BYTES": "text", "BOOL": True}.get(datatype, 1.5 if "F" in datatype else 1)
    if all(size in (1, -1) for size in sizes):
        return str(element) if datatype == "BYTES" else json.dumps(element)
    count = int(np.prod([max(size, 1) for size in sizes]))
    if count > 64:
        return "@FILE.npy"
    return json.dumps(np.full([max(size, 1) for size in sizes], element, object).tolist())
