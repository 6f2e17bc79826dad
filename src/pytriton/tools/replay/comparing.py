# SPDX-License-Identifier: Apache-2.0
"""Compares answers with recorded ones, tensor by tensor. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.settings import DEFAULT_ATOL, DEFAULT_RTOL
from pytriton.protocol.recording import Exchange, RecordedTensor
from pytriton.tools.perf.data.recorded import plain

SOME_ERROR = "an error"  # of a request whose error has no known words
_MAX_TEXT = 60  # characters of a value in a difference


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """How far numbers may be apart: by `atol`, and by `rtol` of the recorded value.

    Integers, booleans and strings have to be equal, and NaN is equal to NaN.
    """

    rtol: float = DEFAULT_RTOL
    atol: float = DEFAULT_ATOL


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedAnswers:
    """What came for a request.

    Attributes:
        responses: The outputs of each response.
        error: The error of the request; empty: there was none. `SOME_ERROR` if its words are not
            known.
    """

    responses: Sequence[Mapping[str, NDArray[Any]]]
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an answer differs.

    Attributes:
        number: Of the exchange in the recording.
        response: The number of the response, from 0.
        index: The element, in each axis; empty: the whole output.
        count: Elements of this output that differ; 0: the whole output.
    """

    number: int
    model: str
    output: str
    response: int
    index: tuple[int, ...]
    expected: str
    got: str
    count: int = 0

    def text(self) -> str:
        """Returns one line."""
        place = f"output {self.output}" if self.output else "answer"
        if self.response:
            place = f"response {self.response}, {place}"
        if self.index:
            place += f"[{', '.join(map(str, self.index))}]"
        more = f" ({self.count:,} elements differ)" if self.count > 1 else ""
        return (
            f"request {self.number} of {self.model}, {place}: expected {self.expected}, "
            f"got {self.got}{more}"
        )


def differences(
    exchange: Exchange, answers: ReplayedAnswers, tolerance: Tolerance
) -> list[Difference]:
    """Returns where the answers to a request differ from the recorded ones: once for each output.

    What was redacted is not compared.
    """

    def whole(expected: str, got: str, output: str = "", response: int = 0) -> Difference:
        return Difference(
            exchange.number, exchange.model, output, response, (), _short(expected), _short(got)
        )

    errors = [each.error for each in exchange.responses if each.error is not None]
    if errors and answers.error:  # texts may name processes and times
        return []
    if errors or answers.error:
        return [whole(_outcome(errors[0] if errors else ""), _outcome(answers.error))]
    recorded = exchange.responses
    if len(recorded) != len(answers.responses):
        return [whole(f"{len(recorded)} responses", f"{len(answers.responses)}")]
    found = []
    for place, (response, got) in enumerate(zip(recorded, answers.responses, strict=True)):
        for output in response.outputs:
            if output.is_redacted:
                continue
            array = got.get(output.name)
            if array is None:
                others = ", ".join(got) or "no output"
                found.append(whole("this output", others, output.name, place))
                continue
            difference = _compare(exchange, place, output, array, tolerance)
            if difference is not None:
                found.append(difference)
    return found


def _outcome(error: str) -> str:
    """Returns in words how a request ended."""
    if not error:
        return "an answer"
    return error if error == SOME_ERROR else f"the error '{error}'"


def _compare(
    exchange: Exchange,
    place: int,
    output: RecordedTensor,
    got: NDArray[Any],
    tolerance: Tolerance,
) -> Difference | None:
    expected = plain(output).array()

    def difference(index: tuple[int, ...], right: object, wrong: object, count: int) -> Difference:
        return Difference(
            exchange.number,
            exchange.model,
            output.name,
            place,
            index,
            _short(str(right)),
            _short(str(wrong)),
            count,
        )

    if expected.shape != got.shape or expected.dtype != got.dtype:
        right, wrong = (f"{each.dtype}{list(each.shape)}" for each in (expected, got))
        return difference((), right, wrong, 0)
    wrong_places = _wrong(expected, got, tolerance)
    first = int(np.argmax(wrong_places)) if wrong_places.size else 0
    if not wrong_places.size or not wrong_places.flat[first]:
        return None
    index = tuple(int(each) for each in np.unravel_index(first, expected.shape))
    return difference(index, expected[index], got[index], int(np.count_nonzero(wrong_places)))


def _wrong(expected: NDArray[Any], got: NDArray[Any], tolerance: Tolerance) -> NDArray[np.bool_]:
    """Returns which elements differ."""
    unequal: NDArray[np.bool_] = np.asarray(expected != got, np.bool_)
    if expected.dtype.kind != "f":
        return unequal
    with np.errstate(all="ignore"):  # infinities and NaN are no accidents here
        wide_expected, wide_got = expected.astype(np.float64), got.astype(np.float64)
        distance = np.abs(wide_got - wide_expected)
        near = distance <= tolerance.atol + tolerance.rtol * np.abs(wide_expected)
    both_nan = np.isnan(expected) & np.isnan(got)
    # The distance to an infinity is within its share, so infinities have to be equal.
    is_infinite = np.isinf(expected) | np.isinf(got)
    wrong: NDArray[np.bool_] = unequal & ~both_nan & (is_infinite | ~near)
    return wrong


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
