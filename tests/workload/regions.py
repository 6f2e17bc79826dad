# SPDX-License-Identifier: Apache-2.0
"""What clients do with shared memory, and what the server may do with it.

A book has a copy of every object of shared memory, and the states that each name of a region may
have. Clients paint the places of outputs before and after a request, so a write that comes late, or
lands elsewhere, leaves a trace. Whatever a client cannot know is a set of possibilities.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from tests.workload import models
from tests.workload.calls import Call, End, Kind, MemoryAct, Place, Port, Region, TensorData

REGION_KINDS = frozenset((Kind.REGISTER, Kind.UNREGISTER, Kind.REGIONS))
_OPERATIONS = (Kind.REGISTER, Kind.UNREGISTER)
_RESERVED_PREFIX = "psm_"
_MAX_UNSIGNED = (1 << 64) - 1
_DEADLINE_EXCEEDED, _CANCELLED = 4, 1  # of gRPC: the request may go on
_INVALID, _NOT_FOUND, _INTERNAL, _EXISTS = (400, 3), (404, 5), (500, 13), (400, 6)


class Memory(Protocol):
    """An object of shared memory, as its client has it."""

    @property
    def size(self) -> int:
        """Its size now."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Read a part; fewer bytes at its end."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Write a part, which is inside of it."""
        ...

    def resize(self, size: int) -> None:
        """Make it smaller, or larger with zeros."""
        ...

    def unlink(self) -> None:
        """Take its name away; whoever has it open keeps it."""
        ...


class Doubt(NamedTuple):
    """A place whose request may still write, or may have written: any of these, or nothing."""

    start: int
    before: bytes
    after: tuple[bytes, ...]
    is_any: bool = False

    def allows(self, actual: bytes) -> bool:
        """Whether a request that was cut off anywhere explains the content."""
        before = self.before[: len(actual)]
        if self.is_any or actual == before:
            return True
        versions = [before, *(each + self.before[len(each) :] for each in self.after)]
        if actual in versions:
            return True
        is_right = np.zeros(len(actual), np.bool_)
        for each in versions:
            is_right |= _as_array(actual) == _as_array(each[: len(actual)])
        return bool(is_right.all())


def _as_array(data: bytes | bytearray) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


class SharedObject:
    """What is known of an object of shared memory."""

    def __init__(self, memory: Memory, now: float) -> None:
        self.memory = memory
        self.expected = bytearray(memory.read(0, memory.size))
        self.sizes = [(now, memory.size)]
        self.doubts: list[Doubt] = []
        # A request that was under way when the object shrank may have made it larger again.
        self.loose_from: int | None = None

    def size_limits(self, since: float) -> tuple[int, int]:
        """The smallest and the largest size from a time on."""
        after = [size for when, size in self.sizes if when > since]
        before = [size for when, size in self.sizes if when <= since][-1:]
        return min(before + after), max(before + after)

    def write(self, start: int, data: bytes) -> None:
        """Write as a client, as far as the object goes."""
        data = data[: max(0, len(self.expected) - start)]
        if data:
            self.memory.write(start, data)
            self.expected[start : start + len(data)] = data

    def accept(self, start: int, size: int) -> None:
        """Take what is there for what should be there."""
        part = self.memory.read(start, size)
        self.expected[start : start + len(part)] = part

    def resize(self, size: int, now: float, *, is_in_use: bool) -> None:
        """Change its size as a client."""
        self.memory.resize(size)
        self.sizes.append((now, size))
        if size < len(self.expected):
            self.doubts = [
                each._replace(is_any=each.is_any or each.start + len(each.before) > size)
                for each in self.doubts
            ]
            del self.expected[size:]
            if is_in_use or self.doubts:
                self.loose_from = min(size, size if self.loose_from is None else self.loose_from)
        else:
            self.expected.extend(bytes(size - len(self.expected)))

    def wrong_places(self, masks: Iterable[tuple[int, int]]) -> Iterator[str]:
        """Sentences on bytes that nobody should have changed, outside of the masks."""
        actual = self.memory.read(0, self.memory.size)
        expected = bytearray(self.expected)
        end = len(expected)
        if self.loose_from is not None:
            end = min(end, self.loose_from)
        elif len(actual) != end:
            yield f"it has {len(actual)} bytes, expected {end}"
        for start, size in masks:
            expected[start : start + size] = actual[start : start + size]
        for doubt in self.doubts:
            part = slice(doubt.start, doubt.start + len(doubt.before))
            if not doubt.allows(actual[part]):
                yield (
                    f"{len(doubt.before)} bytes at {doubt.start} are {actual[part][:64]!r}, which "
                    f"is neither {doubt.before[:8]!r} nor an answer"
                )
            expected[part] = actual[part]
        end = min(end, len(actual))
        if actual[:end] != expected[:end]:
            differing = np.flatnonzero(_as_array(actual[:end]) != _as_array(expected[:end]))
            first, last = differing[0], differing[-1] + 1
            yield (
                f"bytes {first} to {last} are {actual[first:last][:64]!r}, expected "
                f"{bytes(expected[first:last][:64])!r}"
            )
            self.expected[: len(actual)] = actual[: len(self.expected)]


class State(NamedTuple):
    """What a name may stand for."""

    object: SharedObject
    region: Region


States = set["State | None"]


class Name:
    """What is known of a name of a region."""

    def __init__(self) -> None:
        self.possible: States = {None}
        self.operations: dict[int, Call] = {}  # open ones, and those whose end nobody saw
        self.before: dict[int, States] = {}
        self.mixed: set[int] = set()  # operations that were not alone
        self.changed_s = 0.0


@dataclasses.dataclass(slots=True, eq=False)
class Use:
    """An open call that has to do with regions."""

    call: Call
    began_s: float
    states: dict[str, States]  # by name: those that were possible since it began
    target: State | None = None  # of a registration
    refusal: tuple[str, tuple[int, int]] | None = None  # of a registration that is wrong
    painted: dict[str, tuple[SharedObject, int, bytes]] = dataclasses.field(default_factory=dict)
    objects: set[SharedObject] = dataclasses.field(default_factory=set)
    is_disturbed: bool = False  # its inputs may have been anything
    right: dict[str, tuple[bytes, ...]] = dataclasses.field(default_factory=dict)

    def right_outputs(self, name: str) -> tuple[bytes, ...]:
        """The contents that an output may have: one for each response."""
        if name not in self.right:
            call = self.call
            has_answer = call.model in models.ANSWERS and not models.failure_of(call)
            answers = models.ANSWERS[call.model](call) if has_answer else []
            self.right[name] = tuple(
                each.raw for outputs in answers for each in outputs if each.name == name
            )
        return self.right[name]


class RegionBook:
    """All objects of shared memory and all names of a run.

    Args:
        now: tells the time.
        find: is told what the server should not have done.
    """

    def __init__(self, now: Callable[[], float], find: Callable[[str, Call | None], None]) -> None:
        self._now = now
        self._find = find
        self._objects: dict[str, SharedObject] = {}  # by name, as far as they have one
        self._all: list[SharedObject] = []
        self._names: dict[str, Name] = {}
        self._open: dict[int, Use] = {}
        self._paints = itertools.count(1)

    # What clients do

    def act(self, acts: Iterable[MemoryAct], make: Callable[[str, int], Memory]) -> None:
        """Do with shared memory what a client does; `make` makes an object."""
        for key, size, only_makes in acts:
            known = self._objects.get(key)
            if known is None:
                if size is not None:
                    self._objects[key] = made = SharedObject(make(key, size), self._now())
                    self._all.append(made)
                    self._add_late_registrations(key, made)
            elif size is None:
                del self._objects[key]
                known.memory.unlink()
            elif not only_makes:
                users = [use for use in self._open.values() if known in use.objects]
                for use in users:
                    use.is_disturbed = True
                known.resize(size, self._now(), is_in_use=bool(users))

    def _add_late_registrations(self, key: str, made: SharedObject) -> None:
        """A registration whose end nobody saw may find the new object."""
        for name, known in self._names.items():
            for call in known.operations.values():
                if call.region is not None and call.region.key.lstrip("/") == key:
                    known.possible.add(State(made, call.region))
            self._spread(name)

    def begin(self, call: Call) -> None:
        """A call begins: its client writes its inputs, and paints the places of its outputs."""
        now = self._now()
        if call.kind in REGION_KINDS:
            names = [call.text] if call.text else list(self._names)
        else:
            names = list(dict.fromkeys(place.region for place in call.places.values()))
        states = {name: set(self._name(name).possible) for name in names}
        use = self._open[call.number] = Use(call, now, states)
        if call.kind is Kind.REGISTER:
            self._prepare_registration(use)
        if call.kind in _OPERATIONS:
            for name in names:
                self._begin_operation(call, self._name(name), now)
                self._spread(name)
        for name, place in call.places.items():
            self._prepare_tensor(use, name, place)

    def _name(self, name: str) -> Name:
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = Name()
            for use in self._open.values():
                if use.call.kind in REGION_KINDS and not use.call.text:
                    use.states[name] = {None}
                    if use.call.kind is Kind.UNREGISTER:
                        self._begin_operation(use.call, known, self._now())
        return known

    def _begin_operation(self, call: Call, name: Name, now: float) -> None:
        if name.operations:
            name.mixed.update(name.operations, (call.number,))
        name.before[call.number] = set(name.possible)
        name.operations[call.number] = call
        name.changed_s = now

    def _prepare_registration(self, use: Use) -> None:
        region = use.call.region
        assert region is not None
        key = region.key.lstrip("/")
        known = self._objects.get(key)
        wrong: tuple[str, tuple[int, int]] | None = None
        if key.startswith(_RESERVED_PREFIX):
            wrong = ("contains the reserved prefix", _INVALID)
        elif known is None:
            wrong = (f"Unable to open shared memory region: '{region.key}'", _INTERNAL)
        elif not region.byte_size or region.offset + region.byte_size > len(known.expected):
            wrong = ("invalid args", _INVALID)
        use.refusal = wrong
        if wrong is None and known is not None:
            use.target = State(known, region)

    def _spread(self, name: str) -> None:
        """Add what operations under way may make of a name, and tell all calls that use it."""
        known = self._names[name]
        for number, call in known.operations.items():
            if call.kind is Kind.UNREGISTER:
                known.possible.add(None)
            elif number in self._open and self._open[number].target is not None:
                known.possible.add(self._open[number].target)
        for use in self._open.values():
            if name in use.states:
                use.states[name] |= known.possible
                objects = {state.object for state in use.states[name] if state is not None}
                use.is_disturbed |= len(objects) > 1
                use.objects |= objects

    def _prepare_tensor(self, use: Use, name: str, place: Place) -> None:
        states = [state for state in use.states[place.region] if state is not None]
        use.objects.update(state.object for state in states)
        if len(states) != 1:
            use.is_disturbed = True  # nobody knows where its tensors are
            return
        (state,) = states
        start = state.region.offset + place.offset
        if place.offset + place.byte_size > state.region.byte_size:
            return
        given = [each.raw for each in use.call.inputs if each.name == name]
        if not given:
            # The object may be smaller than the region by now.
            room = max(0, len(state.object.expected) - start)
            paint = self._paint(min(place.byte_size, room))
            state.object.write(start, paint)
            use.painted[name] = (state.object, start, paint)
        elif len(given[0]) == place.byte_size:
            state.object.write(start, given[0])

    def _paint(self, size: int) -> bytes:
        return bytes((0x80 | next(self._paints) & 0x7F,)) * size

    # What came of it

    def end(self, call: Call) -> None:
        """A call has ended: reads its outputs, and looks at the objects that it used."""
        use = self._open[call.number]
        if call.places:
            self._read_outputs(use)
        for name in use.painted:
            self._settle(use, name)
        for owner, start, size in self._elsewhere(use):
            if not _is_definite(call):
                owner.doubts.append(Doubt(start, bytes(size), (), is_any=True))
            owner.accept(start, size)
        for each in dict.fromkeys(painted[0] for painted in use.painted.values()):
            self._check_object(each, call)

    def _elsewhere(self, use: Use) -> Iterator[tuple[SharedObject, int, int]]:
        """Where outputs may be, too: the name may have stood for another region meanwhile."""
        for name, place in use.call.output_places():
            painted = use.painted.get(name)
            for state in use.states[place.region]:
                if state is None or place.offset + place.byte_size > state.region.byte_size:
                    continue
                start = state.region.offset + place.offset
                is_painted = painted is not None and (state.object, start) == painted[:2]
                if not is_painted or use.is_disturbed:
                    yield state.object, start, place.byte_size

    def close(self, call: Call) -> None:
        """A call was judged; forget it, as far as its end is known."""
        use = self._open[call.number]
        if call.kind in _OPERATIONS:
            self._end_operation(use)
        del self._open[call.number]

    def check_all(self) -> None:
        """Look at all objects: nothing is under way any more."""
        for each in self._all:
            self._check_object(each, None)

    def forget(self) -> None:
        """The server has ended, and may have forgotten all regions."""
        for name, known in self._names.items():
            known.possible.add(None)
            known.operations[-1] = Call(-1, Kind.UNREGISTER, Port.HTTP)
            self._spread(name)

    def _check_object(self, known: SharedObject, call: Call | None) -> None:
        masks = []
        for use in self._open.values():
            if use.call is call:
                continue
            painted = [(owner, start, len(each)) for owner, start, each in use.painted.values()]
            for owner, start, size in (*painted, *self._elsewhere(use)):
                if owner is known:
                    masks.append((start, size))
        for sentence in known.wrong_places(masks):
            self._find(f"an object of shared memory was written: {sentence}", call)

    def _read_outputs(self, use: Use) -> None:
        """Put outputs into the responses, as if they had been sent.

        Of many, only the last one is there, and that not if more may have come since.
        """
        call = use.call
        responses = call.outcome.responses
        is_whole = call.outcome.end is End.ANSWERED
        for index, response in enumerate(responses):
            outputs: list[TensorData] = []
            for each in response.outputs:
                raw = each.raw
                right = use.right_outputs(each.name)
                if each.name in use.painted and index < len(right):
                    owner, start, paint = use.painted[each.name]
                    raw = right[index]
                    if is_whole and index == len(responses) - 1:
                        raw = owner.memory.read(start, min(len(raw), len(paint)))
                outputs.append(each._replace(raw=raw))
            response.outputs = tuple(outputs)

    def _settle(self, use: Use, name: str) -> None:
        """Decide what may be in the place of an output from now on, and paint it if possible."""
        call, outcome = use.call, use.call.outcome
        owner, start, paint = use.painted[name]
        right = use.right_outputs(name)
        if not _is_definite(call):
            owner.accept(start, len(paint))
            owner.doubts.append(Doubt(start, paint, right, use.is_disturbed))
            return
        if not use.is_disturbed:
            actual = owner.memory.read(start, len(paint))
            allowed = [paint]
            if outcome.end is End.ANSWERED:
                written = len(right[-1]) if right and outcome.responses else 0
                allowed = [actual[:written] + paint[written:]]  # the oracle judges the values
            elif call.kind is Kind.STREAM:
                allowed += [each + paint[len(each) :] for each in right]
            if actual not in allowed:
                how = "after an error" if outcome.end is End.ERROR else "beyond its output"
                self._find(f"the place of '{name}' was written {how}: {actual[:64]!r}", call)
        owner.accept(start, len(paint))
        owner.write(start, self._paint(len(paint)))

    def _end_operation(self, use: Use) -> None:
        call, end = use.call, use.call.outcome.end
        is_refused = end is End.ERROR and any(
            text in call.outcome.error for text, _ in self._refusals(use)
        )
        for name in use.states:
            known = self._names[name]
            if call.number not in known.operations:
                continue
            before = known.before.pop(call.number)
            is_alone = call.number not in known.mixed
            if end is not End.ANSWERED and not is_refused:
                continue  # it may still be done, at any time
            del known.operations[call.number]
            if is_alone and end is End.ANSWERED:
                known.possible = {use.target}
            elif is_alone:
                known.possible = before
            self._spread(name)

    # Errors

    def _refusals(self, use: Use) -> Iterator[tuple[str, tuple[int, int]]]:
        """The errors that a registration may have."""
        if use.refusal is not None:
            yield use.refusal
        if use.call.kind is Kind.REGISTER and any(use.states[use.call.text]):
            yield "already in manager", _EXISTS

    def _problems(self, use: Use) -> Iterator[list[tuple[str, tuple[int, int]] | None]]:
        """For each tensor in a region what may be wrong with it; None for nothing."""
        call = use.call
        inputs = {each.name: each.raw for each in call.inputs}
        for name, place in call.places.items():
            yield [
                problem
                for state in use.states[place.region]
                for problem in self._problems_of(use, state, place, inputs.get(name), name)
            ]

    def _problems_of(
        self, use: Use, state: State | None, place: Place, given: bytes | None, name: str
    ) -> Iterator[tuple[str, tuple[int, int]] | None]:
        if state is None:
            yield f"Unable to find shared memory region: '{place.region}'", _NOT_FOUND
            return
        limit, end = state.region.byte_size, place.offset + place.byte_size
        if place.offset >= limit or end > limit or not end:
            yield "for shared memory region", _INVALID
            if end > _MAX_UNSIGNED:
                yield "Integer overflow detected", _INVALID
            return
        least, most = state.object.size_limits(use.began_s)
        size = place.byte_size
        if given is None:
            outputs = use.right_outputs(name)
            if not outputs:  # a stream without a response writes nothing
                yield None
            size = max(map(len, outputs), default=0)
            if size > place.byte_size:
                yield "should be at least", _INTERNAL
                return
        end = state.region.offset + place.offset + size
        if least < end:
            yield "was made smaller", _INVALID
            yield "it was made smaller", _INTERNAL
        if given is not None and size != len(given):
            yield "input byte size mismatch", _INVALID
            yield "string", _INVALID  # of what is there of a BYTES tensor
        elif most >= end:
            yield None

    def is_answer_wrong(self, call: Call) -> bool:
        """Whether a call was answered that should have been refused."""
        return any(None not in each for each in self._problems(self._open[call.number]))

    def explains(self, call: Call, status: int | None) -> bool:
        """Whether the error of an inference is that of a wrong place, or of memory that shrank."""
        use = self._open.get(call.number)
        if use is None:
            return False
        if use.is_disturbed and status in (None, 400, 500, 3, 13):
            return True
        column = 0 if call.port is Port.HTTP else 1
        return any(
            problem is not None
            and problem[0] in call.outcome.error
            and status in (None, problem[1][column])
            for each in self._problems(use)
            for problem in each
        )

    def is_lost(self, call: Call) -> float | None:
        """Since when a region may be missing that a call did not find; None for another error."""
        use = self._open.get(call.number)
        if use is None or "Unable to find" not in call.outcome.error:
            return None
        return min((self._names[name].changed_s for name in use.states), default=None)

    def is_disturbed(self, call: Call) -> bool:
        """Whether a call may have got other inputs than its client wrote."""
        use = self._open.get(call.number)
        return use is not None and use.is_disturbed

    def judge(self, call: Call) -> str:
        """What is wrong with the end of a call about regions; empty if nothing is."""
        use = self._open[call.number]
        outcome = call.outcome
        if outcome.end is End.ANSWERED:
            if call.kind is Kind.REGISTER:
                if use.refusal is not None:
                    return f"expected the error {use.refusal[0]!r}, but it was registered"
                if None not in use.states[call.text]:
                    return "a name was registered twice"
            return self._judge_status(use) if call.kind is Kind.REGIONS else ""
        allowed = list(self._refusals(use))
        if call.kind is Kind.REGIONS and None in use.states.get(call.text, ()):
            allowed.append(("Unable to find system shared memory region", _NOT_FOUND))
        column = 0 if call.port is Port.HTTP else 1
        for text, statuses in allowed:
            if text in outcome.error and outcome.status == statuses[column]:
                return ""
        return f"nothing explains the error {outcome.error!r}, expected one of {allowed}"

    def _judge_status(self, use: Use) -> str:
        document = use.call.outcome.responses[0].document
        listed = dict(_read_status(document))
        for name, region in listed.items():
            known = {state.region for state in use.states.get(name, ()) if state is not None}
            if region not in known:
                return f"the region '{name}' is {region}, expected one of {known}"
        missing = [
            name for name, states in use.states.items() if None not in states and name not in listed
        ]
        if missing:
            return f"regions are missing: {missing}"
        if use.call.text and list(listed) != [use.call.text]:
            return f"expected the region '{use.call.text}', got {list(listed)}"
        return ""


def _is_definite(call: Call) -> bool:
    """Whether the server writes nothing any more, as far as its client knows."""
    outcome = call.outcome
    if outcome.end is End.ANSWERED:
        return True
    if outcome.end is not End.ERROR or (call.lane is not None and outcome.status is not None):
        return False  # or the stream ended, and not only this request of it
    return call.port is Port.HTTP or outcome.status not in (_DEADLINE_EXCEEDED, _CANCELLED)


def _read_status(document: Any) -> Iterator[tuple[str, Region]]:
    """The regions that an answer lists, by name."""
    if isinstance(document, list):
        for each in document:
            yield each["name"], Region(each["key"], each["offset"], each["byte_size"])
    else:
        for name, each in document.regions.items():
            if name != each.name:
                yield f"{name} or {each.name}", Region("", 0, 0)
            else:
                yield name, Region(each.key, each.offset, each.byte_size)
