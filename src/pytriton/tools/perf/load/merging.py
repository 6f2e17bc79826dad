# SPDX-License-Identifier: Apache-2.0
"""Makes records of what the processes of a load recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.tools.perf.load.answers import AnswerError, outputs_of
from pytriton.tools.perf.load.recipe import Recipe, Taken
from pytriton.tools.perf.load.recorder import ROW_DTYPE
from pytriton.tools.perf.load.records import GeneratorState, Records
from pytriton.tools.perf.load.tensors import array_of

# A generator that waited less than this share of the time for the server was itself too slow.
_LEAST_WAITING_SHARE = 0.05
_MOST_CPU_SHARE = 0.9


def merged(recipe: Recipe, parts: Sequence[Taken], *, is_done: bool) -> Records:
    """The records of all processes, in the order in which requests ended."""
    rows = np.concatenate([np.frombuffer(part.rows, ROW_DTYPE) for part in parts])
    times = np.concatenate([np.frombuffer(part.response_ns, np.int64) for part in parts])
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part.errors)
    answers = [answer for part in parts for answer in part.answers]
    sizes = [size for part in parts for size in part.json_bytes]
    if len(parts) > 1:
        order = np.argsort(rows["last"], kind="stable")
        if recipe.is_streaming:
            times = _reordered(times, rows["responses"], order)
        rows = rows[order]
        if answers:
            answers = [answers[index] for index in order]
            sizes = [sizes[index] for index in order]
    return Records(
        begin_ns=rows["begin"].copy(),
        sent_ns=rows["sent"].copy(),
        first_ns=rows["first"].copy(),
        last_ns=rows["last"].copy(),
        responses=rows["responses"].astype(np.int64),
        ok=rows["ok"].copy(),
        delayed=rows["delayed"].copy(),
        input_index=rows["input"].astype(np.int64),
        sequence_id=rows["sequence"].copy(),
        response_ns=times,
        errors=dict(errors),
        generator=generator_state(parts),
        taken_ns=max(part.taken_ns for part in parts),
        since_ns=min(part.since_ns for part in parts),
        is_done=is_done,
        outputs=_outputs(recipe, answers, sizes) if recipe.keeps_outputs else None,
    )


def _reordered(
    times: NDArray[np.int64], counts: NDArray[np.int32], order: NDArray[np.intp]
) -> NDArray[np.int64]:
    """The times of responses, request after request, in another order of the requests."""
    pieces = np.split(times, np.cumsum(counts)[:-1])
    return np.concatenate([pieces[index] for index in order]) if len(order) else times


def generator_state(parts: Sequence[Taken]) -> GeneratorState:
    """How busy the busiest process was."""
    elapsed = [max(1, part.taken_ns - part.since_ns) for part in parts]
    cpu = max(part.cpu_ns / time for part, time in zip(parts, elapsed, strict=True))
    waiting = min(part.waiting_ns / time for part, time in zip(parts, elapsed, strict=True))
    events = sum(part.events for part in parts)
    return GeneratorState(
        processes=len(parts),
        cpu_share=min(cpu, 1.0),
        waiting_share=min(waiting, 1.0),
        lag_ns=sum(part.lag_ns for part in parts) / events if events else 0.0,
        is_limit=waiting < _LEAST_WAITING_SHARE or cpu > _MOST_CPU_SHARE,
    )


def _outputs(
    recipe: Recipe, answers: Sequence[Sequence[bytes]], sizes: Sequence[Sequence[int]]
) -> list[list[Mapping[str, NDArray[Any]]]]:
    return [
        [_arrays(recipe, answer, size) for answer, size in zip(of_request, of_sizes, strict=True)]
        for of_request, of_sizes in zip(answers, sizes, strict=True)
    ]


def _arrays(recipe: Recipe, answer: bytes, size: int) -> Mapping[str, NDArray[Any]]:
    try:
        outputs = outputs_of(answer, size, is_grpc=recipe.is_grpc, is_streaming=recipe.is_streaming)
    except AnswerError:
        return {}
    return {output.name: array_of(output) for output in outputs}
