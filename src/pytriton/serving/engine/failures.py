# SPDX-License-Identifier: Apache-2.0
"""The last failures of requests in groups: by model, by the kind of error and by its place.

Only requests that fail or are refused cost anything. Groups, and all that is kept of them, are
bounded, because clients decide how many requests fail, and with what.
"""

from __future__ import annotations

import functools
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton.base.errors import sendable_text
from pytriton.base.failure_records import FailedInput, FailureExample, FailureGroup
from pytriton.base.messages import DeviceBytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferTensor
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Inference

    Key = tuple[str, int, str, str, str]

REFUSED = "REFUSED"  # the reason of requests that no model has seen
CANCELED = "CANCELED"
MAX_GROUPS = 128
MAX_REFUSED_GROUPS = 64  # refusals are the cheapest to provoke: failures of models stay
MAX_INPUTS = 16
MAX_DIMENSIONS = 16
MAX_NAME_CHARS = 200
MAX_MESSAGE_CHARS = 2000
MAX_TRACEBACK_CHARS = 8000
MAX_PLACE_CHARS = 300
MAX_KEPT_BYTES = 64 << 10  # of the inputs of one request
MAX_KEPT_GROUPS = 8  # that have inputs, or wait for some
EXAMPLE_EVERY_S = 0.1  # thousands of failures a second do not need an example each

_ID_PREFIX = "[request id: "
_CANCELLED_PLACE = "the client cancelled the request"
# What differs from request to request: quoted names, lists such as shapes, words with a digit.
_VARYING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|\[[^\]\n]*\]|[\w.:/-]+")


def normalised(message: str) -> str:
    """Returns the first line of a message without what differs from request to request."""
    if message.startswith(_ID_PREFIX):  # not all requests have an id
        message = message.partition("] ")[2]
    return _normalised(message.partition("\n")[0][:MAX_PLACE_CHARS])


@functools.lru_cache(maxsize=256)  # most refused requests repeat, and this takes 10 us
def _normalised(line: str) -> str:
    return _VARYING.sub(_without_values, line)


def _without_values(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] in "'\"[":
        return f"{text[0]}…{text[-1]}"
    return "…" if any(map(str.isdigit, text)) else text


@dataclass(slots=True)
class KeptInput:
    """An input of a failed request with its contents, which may be cut at the end."""

    described: FailedInput
    data: bytes
    is_cut: bool


@dataclass(slots=True)
class KeptInputs:
    """The inputs of one failed request."""

    time_s: float
    request_id: str
    inputs: list[KeptInput]


@dataclass(slots=True)
class ListedGroup:
    """A group, by which number clients mean it, and the inputs that somebody has asked for."""

    number: int
    record: FailureGroup
    awaits_inputs: bool = False
    kept: KeptInputs | None = None


class FailureBook:
    """Groups of failures, the one with the newest failure last."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.unknown_refusals = 0  # requests that reached no model
        self.on_added: Callable[[], None] | None = None
        self._clock = clock
        self._groups: OrderedDict[Key, ListedGroup] = OrderedDict()
        self._refused_groups = 0
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(
        self, spec: ModelSpec | None, inference: Inference, error: ServerError, reason: str
    ) -> None:
        """Count a request that failed; without a model if it reached none."""
        now_s = self._clock()
        group = self._counted(spec, error, reason, now_s)
        record = group.record
        if self._is_example_due(record, error, now_s):
            request, inputs = inference.request, _inputs(inference)
            described = list(map(_described, inputs[:MAX_INPUTS]))
            record.example = _example(
                now_s, request.model_name, request.fields.id, error, described
            )
            record.example.more_inputs = len(inputs) - len(described)
        if group.awaits_inputs:
            group.awaits_inputs = False
            request_id = sendable_text(inference.request.fields.id[:MAX_NAME_CHARS])
            group.kept = KeptInputs(now_s, request_id, _kept(_inputs(inference)))

    def _is_example_due(self, record: FailureGroup, error: ServerError, now_s: float) -> bool:
        example, origin = record.example, error.origin
        # A process that fails often does not send a traceback each time.
        is_whole = origin is None or bool(origin.traceback) or not example.traceback
        return is_whole and now_s - example.time_s >= EXAMPLE_EVERY_S

    def add_refusal(
        self, spec: ModelSpec | None, model_name: str, request_id: str, error: ServerError
    ) -> None:
        """Count a request that was refused before it was read to its end."""
        now_s = self._clock()
        record = self._counted(spec, error, REFUSED, now_s).record
        if self._is_example_due(record, error, now_s):
            record.example = _example(now_s, model_name, request_id, error, [])

    def merge(self, other: FailureGroup) -> None:
        """Add failures that another process has counted."""
        key = (other.model, other.version, other.kind, other.place, other.reason)
        record = self._group(key, other.first_s).record
        record.count += other.count
        record.last_s = max(record.last_s, other.last_s)
        if other.example.time_s >= record.example.time_s:
            record.example = other.example
        self._note(key, other.count)

    def take(self) -> list[FailureGroup]:
        """Returns all groups, and begins with none again."""
        groups = [group.record for group in self._groups.values()]
        self._groups.clear()
        self._refused_groups = 0
        return groups

    def listed(self) -> list[ListedGroup]:
        """Returns all groups, that with the newest failure first."""
        return list(reversed(self._groups.values()))

    def find(self, number: int) -> ListedGroup | None:
        """Returns the group with a number; None if there is none any more."""
        return next((each for each in self._groups.values() if each.number == number), None)

    def keep_inputs(self, group: ListedGroup, *, is_wanted: bool) -> None:
        """Keep the inputs of the next failure of a group, or forget them."""
        group.kept, group.awaits_inputs = None, is_wanted
        if not is_wanted:
            return
        keeping = [each for each in self._groups.values() if each.awaits_inputs or each.kept]
        for oldest in [each for each in keeping if each is not group][: 1 - MAX_KEPT_GROUPS]:
            oldest.kept, oldest.awaits_inputs = None, False

    def _counted(
        self, spec: ModelSpec | None, error: ServerError, reason: str, now_s: float
    ) -> ListedGroup:
        name, version = ("", 0) if spec is None else (spec.identifier, spec.version)
        origin = error.origin
        if origin is not None:
            kind, place = origin.kind[:MAX_NAME_CHARS], origin.place[:MAX_PLACE_CHARS]
        else:
            kind, place = error.kind, ""
        if not place:
            place = sendable_text(normalised(error.message))
        if not place and reason == CANCELED:
            place = _CANCELLED_PLACE
        key = (name, version, kind, place, reason)
        group = self._group(key, now_s)
        group.record.count += 1
        group.record.last_s = now_s
        self._note(key, 1)
        return group

    def _group(self, key: Key, first_s: float) -> ListedGroup:
        group = self._groups.get(key)
        if group is not None:
            self._groups.move_to_end(key)
            return group
        self._last_number += 1
        example = FailureExample(0.0, "", "", "")
        record = FailureGroup(*key, 0, first_s, first_s, example)
        group = self._groups[key] = ListedGroup(self._last_number, record)
        self._refused_groups += key[4] == REFUSED
        self._make_room()
        return group

    def _make_room(self) -> None:
        """Drop the group whose last failure is the oldest, a refusal if there are many of them."""
        if self._refused_groups > MAX_REFUSED_GROUPS:
            key = next(key for key in self._groups if key[4] == REFUSED)
        elif len(self._groups) > MAX_GROUPS:
            key = next(iter(self._groups))
        else:
            return
        del self._groups[key]
        self._refused_groups -= key[4] == REFUSED

    def _note(self, key: Key, count: int) -> None:
        if not key[0]:
            self.unknown_refusals += count
        if self.on_added is not None:
            self.on_added()


@dataclass(slots=True)
class ModelFailures:
    """The failures of one model, which its statistics count."""

    book: FailureBook
    spec: ModelSpec

    def add(self, inference: Inference, error: ServerError, reason: str) -> None:
        """Count a request that failed."""
        self.book.add(self.spec, inference, error, reason)


def _example(
    now_s: float, model_name: str, request_id: str, error: ServerError, inputs: list[FailedInput]
) -> FailureExample:
    traceback = "" if error.origin is None else error.origin.traceback
    return FailureExample(
        now_s,
        sendable_text(model_name[:MAX_NAME_CHARS]),
        sendable_text(request_id[:MAX_NAME_CHARS]),
        sendable_text(cut(error.message, MAX_MESSAGE_CHARS)),
        cut(traceback, MAX_TRACEBACK_CHARS),
        inputs,
    )


def cut(text: str, max_chars: int) -> str:
    """Returns a text with its middle left out if it is long: both of its ends matter."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters are left out …\n{text[-half:]}"


def _inputs(inference: Inference) -> list[InferTensor]:
    chunk, request = inference.chunk, inference.request
    inputs = request.inputs if chunk is None else chunk.inputs_of(inference.index, request.rows)
    return list(inputs.values())


def _described(tensor: InferTensor) -> FailedInput:
    name = sendable_text(tensor.name[:MAX_NAME_CHARS])
    return FailedInput(name, tensor.dtype.name, tuple(tensor.shape[:MAX_DIMENSIONS]))


def _kept(inputs: list[InferTensor]) -> list[KeptInput]:
    kept, room = [], MAX_KEPT_BYTES
    for tensor in inputs[:MAX_INPUTS]:
        whole = memoryview(tensor.data)
        data = bytes(whole.cast("B")[:room]) if whole.nbytes else b""
        is_on_gpu = isinstance(tensor.data, DeviceBytes)  # nobody here can read it
        kept.append(KeptInput(_described(tensor), data, is_on_gpu or len(data) < whole.nbytes))
        room -= len(data)
    return kept
