# SPDX-License-Identifier: Apache-2.0
"""What a broken or hostile worker says, by a seed: frames with other values, order, and number."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from pytriton.base import dtypes
from pytriton.base.log_switches import LogSwitches
from pytriton.runtime.transport import frames
from pytriton.runtime.transport.refs import BlockRef, MemoryUpdate, SegmentRef, TensorRef
from tests.fuzz.fuzzing import Case
from tests.fuzz.mutation import encodable, mutate_bytes, mutate_document
from tests.fuzz.worker_world import KINDS

INT32 = dtypes.INT32.number
PACKET_BYTES = 128 << 10
NUMBERS = (
    0, 1, 2, 3, -1, 7, 14, 15, 255, 2**16, 2**20, 2**23, 2**31, 2**32, 2**40, 2**48, 2**62,
    2**63 - 1, 2**64 - 1, -(2**31), -(2**63), 0.5, 1e300, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
INTEGERS = [each for each in NUMBERS if isinstance(each, int)]
TEXTS = (
    "", "x", "OUT", "IN", "echo", "wild", "nobody", "\0", "\n", "x\nforged 1", "\x1b[2J", "\u2028",
    "\U0001f600", "A" * 300, "B" * 20_000, "ERROR", "GAUGE", "FOO", "NaN", "../x", '"', "\\", "{}",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, [], {}, [[]], [1] * 3, [2**62] * 50, ["x"] * 2000, {"a": 1}, {"le": "1"}, b"", b"x",
)  # fmt: skip
# File descriptors that come with a message: what they are of.
FILES = ("sealed 65536", "sealed 1048576", "sealed 0", "sealed 1099511627776", "unsealed 65536",
         "null", "pipe", "socket")  # fmt: skip


class Saying(NamedTuple):
    """A step of a story: a message that the worker sends, so often."""

    message: bytes
    files: tuple[str, ...] = ()
    count: int = 1
    kind: str = ""  # of its frame, for the account


class Turns(NamedTuple):
    """A step: the loop makes turns."""

    count: int


class Passing(NamedTuple):
    """A step: time passes."""

    seconds: float


class Doing(NamedTuple):
    """A step: a client asks the model or another, or the worker does not listen."""

    what: str  # ask, probe, deaf, hang up


def whole(record: bytes, inline: bytes) -> bytes:
    """Returns the message of a record."""
    return struct.pack("<I", len(record)) + record + bytes(-(4 + len(record)) % 16) + inline


def _batch(source: random.Random) -> int:
    return source.choice((1, 1, 1, 2, 2, 3, 4))


def _times(source: random.Random) -> tuple[int, int]:
    return source.choice(((1, 2), (0, 0), (5, 5)))


def _outputs(source: random.Random, *, rows: int = 1) -> list[TensorRef]:
    shape = source.choice(((rows, 2), (rows, 2), (2,)))
    size = 4 * (rows if len(shape) == 2 else 1) * 2
    return [TensorRef("OUT", INT32, shape, 0, size)] * source.choice((1, 1, 1, 0, 2))


def _result(source: random.Random) -> Any:
    rows = source.choice((1, 1, 2, 3))
    return frames.BatchResult(_batch(source), *_times(source), _outputs(source, rows=rows), 5)


def _item(source: random.Random) -> frames.ResponseItem:
    outputs = source.choice((None, _outputs(source)))
    error = source.choice((None, None, "wrong", ""))
    return frames.ResponseItem(
        _batch(source),
        source.choice((0, 0, 1, 2)),
        outputs if error is None else None,
        source.random() < 0.5,
        error,
        source.choice((0, 1, 6)),
        is_rescheduled=source.random() < 0.1,
    )


def _responses(source: random.Random) -> Any:
    items = [_item(source) for _ in range(source.choice((0, 1, 1, 3)))]
    frame = frames.ResponsesFrame(*_times(source), items)
    frame.returned_batch = source.choice((0, 0, 1, 2))
    if source.random() < 0.4:
        count = source.choice((1, 2, 5))
        bursts = [frames.BurstRef(_batch(source), 0, count)] * source.choice((1, 2))
        total = count * len(bursts)
        ref = TensorRef("OUT", INT32, (2,), 0, 8 * total)
        frame.rows = frames.ResponseRows(bursts, [ref])
    return frame


def _failure(source: random.Random) -> Any:
    return frames.BatchFailure(_batch(source), *_times(source), "failed", source.choice((0, 6)))


def _call(source: random.Random) -> Any:
    return frames.InferCallFrame(
        source.choice((1, 2, 3, source.randrange(1, 1000))),
        source.choice(("echo", "echo", "wild", "nobody")),
        -1,
        [TensorRef("IN", INT32, source.choice(((2,), (1, 2))), 0, 8)],
        is_decoupled=source.random() < 0.5,
        blocked_batch=source.choice((0, 0, 1, 2)),
        batch=source.choice((0, 0, 1)),
        timeout_us=source.choice((0, 0, 1000)),
        correlation_id=source.choice((0, 0, 5, "five")),
        flags=source.choice((0, 0, 1, 3)),
        keeps_errors=source.random() < 0.2,
    )


def _service(source: random.Random) -> Any:
    number = source.choice((1, 1, 2, 3))
    arguments: dict[str, dict[str, Any]] = {
        "new_family": {
            "family": number,
            "name": source.choice(("f", "f_count", "f_total", "g")),
            "description": "text",
            "kind": source.choice(("COUNTER", "GAUGE", "HISTOGRAM")),
        },
        "delete_family": {"family": number},
        "new_metric": {
            "family": number,
            "metric": source.randrange(1, 5),
            "labels": source.choice(({}, {"a": "b"}, {"a": "c", "b": "d"})),
            "buckets": source.choice((None, [1.0, 2.0], [-1.0])),
        },
        "delete_metric": {"metric": number},
        "increment": {"metric": number, "value": source.choice((1.0, -1.0, 1e308))},
        "set": {"metric": number, "value": source.choice((1.0, float("nan"), float("-inf")))},
        "observe": {"metric": number, "value": source.choice((1.0, -3.0, float("nan")))},
        "value": {"metric": number},
        "describe_model": {"name": source.choice(("echo", "nobody")), "version": ""},
        "device_taking": {"name": "echo", "version": ""},
        "load_model": {"name": "echo", "config": "", "files": {}},
        "unload_model": {"name": "echo", "unload_dependents": False},
        "is_model_ready": {"name": source.choice(("echo", "wild", "nobody")), "version": ""},
    }
    action = source.choice([*arguments, "new_family", "new_metric", "new_metric"])
    return frames.ServiceCall(source.choice((0, 1, 2, 3)), action, arguments[action])


def _line(source: random.Random) -> Any:
    level = source.choice(("INFO", "WARNING", "ERROR", "VERBOSE"))
    return frames.WorkerLogLine(level, "text", "model.py", 7, ["id"], "wild", created=1.0)


def _memory(source: random.Random) -> Any:
    return frames.MemoryFrame()


def _notes(source: random.Random) -> Any:
    return frames.DeviceNotes([1], [2], {"sandbox": 1}, {1: "sandbox"})


VALID: dict[str, Callable[[random.Random], Any]] = {
    "batch": _result,
    "responses": _responses,
    "failure": _failure,
    "infer": _call,
    "service": _service,
    "log": _line,
    "memory": _memory,
    "device_notes": _notes,
    "initialized": lambda source: frames.Initialized(concurrency=source.choice((0, 1, 4))),
    "finalized": lambda _: frames.Finalized(),
    "ready": lambda source: frames.ReadyReport(source.choice((0, 1, 2)), True),
    "cancel_call": lambda source: frames.CancelCall(source.choice((1, 2, 3))),
    "call_credit": lambda source: frames.CallCredit(source.choice((1, 2, 3)), 1),
    # What only the server says.
    "execute": lambda _: frames.Execute(1, [1], []),
    "log_change": lambda _: frames.LogChange(LogSwitches()),
}
_WEIGHTS = [4, 4, 1, 4, 5, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1]


def _attach_memory(source: random.Random, frame: Any) -> tuple[str, ...]:
    """Let a frame bring segments, name blocks and end the use of others."""
    files = tuple(source.choice(FILES) for _ in range(source.choice((1, 1, 2))))
    sizes = [int(file.split()[1]) if " " in file else 65536 for file in files]
    segment = source.choice((1, 1, 2, 9))
    frame.memory = MemoryUpdate(
        segments=[SegmentRef(segment + at, size) for at, size in enumerate(sizes)],
        blocks=[BlockRef(source.choice((1, 2, 5)), segment, 0, 8)] * source.choice((0, 1, 1, 2)),
        released_blocks=source.choice(([], [], [1])),
        returned_blocks=source.choice(([], [], [1])),
    )
    for ref in getattr(frame, "outputs", None) or ():
        if isinstance(ref, TensorRef) and source.random() < 0.7:
            ref.block = source.choice((1, 2, -1))
    return files if source.random() < 0.8 else files[1:]


def _change(source: random.Random, document: Any) -> Any:
    """Returns a document with another value at some place."""
    if isinstance(document, list | dict) and document and source.random() < 0.85:
        places = list(document) if isinstance(document, dict) else list(range(len(document)))
        if isinstance(document, list) and len(places) > 1 and source.random() < 0.9:
            del places[0]  # the kind of a frame: what follows is more interesting
        at = source.choice(places)
        changed = dict(document) if isinstance(document, dict) else list(document)
        changed[at] = _change(source, document[at])
        return changed
    if source.random() < 0.7:  # of the same type, so that somebody takes it for what it says
        return _same_type(source, document)
    if source.random() < 0.3:
        return mutate_document(source, document)
    return source.choice(source.choice((NUMBERS, TEXTS, OTHERS)))


def _same_type(source: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = value + source.choice((-1, 1, 1, 2))
        return near if source.random() < 0.3 else source.choice(INTEGERS)
    if isinstance(value, str):
        return source.choice(TEXTS)
    if isinstance(value, list):
        # What is long already gets no thousand times as long by each further change.
        return value * source.choice((0, 2, 3, 1000 if len(str(value)) < 300 else 2))
    return source.choice(NUMBERS if isinstance(value, float) else OTHERS)


def saying(source: random.Random, *, changes: bool, kind: str = "") -> Saying:
    """Returns a frame, valid or with one to three other values."""
    kind = kind or source.choices(list(VALID), _WEIGHTS)[0]
    frame = VALID[kind](source)
    files: tuple[str, ...] = ()
    if source.random() < (0.6 if kind == "memory" else 0.08):
        files = _attach_memory(source, frame)
    if not changes:
        return Saying(whole(msgspec.msgpack.encode(frame), bytes(64)), files, 1, kind)
    document = encodable(msgspec.to_builtins(frame, builtin_types=(bytes,)))
    for _ in range(source.choice((1, 1, 2, 3))):
        document = encodable(_change(source, document))
    record = msgspec.msgpack.encode(document)
    if source.random() < 0.04:
        record = mutate_bytes(source, record)
    message = whole(record[:1_000_000], bytes(64))
    if source.random() < 0.02:
        message = message[: source.randrange(1, len(message))]
    if source.random() < 0.05:
        files = (*files, source.choice(FILES))
    return Saying(message, files, 1, f"{kind}, changed")


def _flood(source: random.Random) -> Iterable[Any]:
    """Yields steps in which a worker says the same over and over, and perhaps does not listen."""
    if source.random() < 0.4:
        yield Doing("deaf")
    yield Doing("ask")
    choice = source.random()
    count = source.choice((50, 200, 600))
    if choice < 0.1:  # a message that does not end
        yield Saying(bytes(PACKET_BYTES), (), source.choice((10, 40)), "endless")
    elif choice < 0.55:
        yield saying(source, changes=source.random() < 0.3)._replace(count=count)
    else:  # numbers that are not the same, as calls and metrics have
        kind = source.choice(("infer", "service", "service", "memory", "responses"))
        for _ in range(count):
            yield saying(source, changes=False, kind=kind)
    for _ in range(source.choice((1, 3))):
        yield Doing("probe")
        yield Turns(source.choice((1, 2, 5)))
        yield Doing("ask")


def make_story(source: random.Random) -> Case:
    """Returns what a worker does, and when clients ask."""
    story: Case = [source.choice(KINDS)]
    story += [Doing("ask")] * source.choice((0, 1, 1, 2, 3))
    if source.random() < 0.8:
        story.append(Turns(3))
    if source.random() < 0.15:
        story += _flood(source)
    else:
        is_disorder = source.random() < 0.3
        for _ in range(source.choice((1, 2, 4, 8, 16))):
            changes = source.random() < (0.1 if is_disorder else 0.55)
            story.append(saying(source, changes=changes))
            if source.random() < 0.5:
                story.append(Turns(source.choice((1, 1, 2, 6))))
            if source.random() < 0.25:
                story.append(Doing(source.choice(("ask", "ask", "probe", "deaf", "hang up"))))
            if source.random() < 0.04:
                story.append(Passing(source.choice((0.1, 1.0, 6.0, 40.0))))
    story.append(Doing("probe"))
    return story
