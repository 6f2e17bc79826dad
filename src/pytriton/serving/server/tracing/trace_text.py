# SPDX-License-Identifier: Apache-2.0
"""Writes traces as Triton's trace files have them: JSON objects, one for each event.

It has no I/O. The objects of a request have its number as `id`; those of calls that it made come
before its own, the last call first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from pytriton.serving.server.tracing.request_trace import receiving
from pytriton.serving.server.tracing.tensor_text import tensor_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytriton.serving.server.tracing.request_trace import TensorFact, TraceFacts


def trace_text(requests: Iterable[TraceFacts]) -> str:
    """Returns the objects of a traced request and of its calls, separated by commas."""
    ordered = sorted(requests, key=lambda facts: -facts.number)
    return ",".join(text for facts in ordered for text in _objects(facts))


def _objects(facts: TraceFacts) -> Iterator[str]:
    times = facts.has_timestamps
    if times:
        for name, at_ns in receiving(facts):
            yield _time(facts, name, at_ns)
        yield _model(facts)
        yield _time(facts, "REQUEST_START", facts.start_ns)
        queued_ns = facts.executions[0].times_ns.queued_ns if facts.executions else facts.start_ns
        yield _time(facts, "QUEUE_START", queued_ns)
    for tensor in facts.tensors or ():
        yield _tensor(facts, tensor)
    if times:
        yield from _computed(facts)
        yield _time(facts, "REQUEST_END", facts.answered_ns)
        for name, at_ns in facts.events:
            yield _time(facts, name, at_ns)


def _model(facts: TraceFacts) -> str:
    fields: dict[str, object] = {
        "id": facts.number,
        "model_name": facts.model_name,
        "model_version": facts.model_version,
    }
    if facts.request_id:
        fields["request_id"] = facts.request_id
    if facts.parent_number:
        fields["parent_id"] = facts.parent_number
    return orjson.dumps(fields).decode()


def _computed(facts: TraceFacts) -> Iterator[str]:
    if facts.is_ensemble:  # its steps have these times
        return
    for _, times_ns in facts.executions:
        yield _time(facts, "COMPUTE_START", times_ns.started_ns)
        yield _time(facts, "COMPUTE_INPUT_END", times_ns.infer_start_ns)
        yield _time(facts, "COMPUTE_OUTPUT_START", times_ns.output_start_ns)
        yield _time(facts, "COMPUTE_END", times_ns.ended_ns)


def _time(facts: TraceFacts, name: str, at_ns: int) -> str:
    return f'{{"id":{facts.number},"timestamps":[{{"name":"{name}","ns":{at_ns}}}]}}'


def _tensor(facts: TraceFacts, tensor: TensorFact) -> str:
    described = {
        "name": tensor.name,
        "data": tensor_text(tensor.dtype, tensor.data),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.dtype.name,
    }
    fields = {"id": facts.number, "activity": tensor.activity, "tensor": described}
    return orjson.dumps(fields).decode()
