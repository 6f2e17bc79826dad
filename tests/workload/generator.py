# SPDX-License-Identifier: Apache-2.0
"""Makes populations of clients from a generator of random numbers: the same from the same seed.

A client has a habit, such as pipelining requests or working through sequences. A profile says how
common each habit is, and how badly clients behave.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tests.workload import models
from tests.workload.calls import (
    ACCEPTED_CODINGS,
    INFERENCES,
    Call,
    Conduct,
    Cut,
    Form,
    Kind,
    MemoryAct,
    Place,
    Port,
    Region,
    SequenceStep,
)
from tests.workload.http2_client import FRAMES
from tests.workload.invalid import (
    GRPC_CALLS,
    GRPC_FRAMES,
    HTTP2_REQUESTS,
    HTTP_REQUESTS,
    WRONG_CODINGS,
)
from tests.workload.sessions import ClientPlan

T = TypeVar("T")


class Dice:
    """Choices that use nothing of a generator but `random()`, whose numbers never change."""

    def __init__(self, source: random.Random) -> None:
        self.random = source.random

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self.random() * (high - low + 1))

    def choose(self, items: Sequence[T]) -> T:
        return items[int(self.random() * len(items))]

    def weigh(self, weights: dict[str, float]) -> str:
        """A key, as often as its weight says."""
        rest = self.random() * sum(weights.values())
        for name, weight in weights.items():
            rest -= weight
            if rest < 0:
                return name
        return name


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """What the clients of a population are like.

    Args:
        habits: weights of the habits in `HABITS`.
        rudeness: share of the calls whose client leaves or cancels.
        slowness: share of the calls whose client sends in pieces or stops reading.
        longest_pause_s: of a client between two calls.
        longest_work_s: that a client asks of `slow` and of a stream.
        spread: how far apart clients begin, as a share of what is usual.
    """

    habits: dict[str, float]
    rudeness: float = 0.0
    slowness: float = 0.0
    longest_pause_s: float = 0.02
    longest_work_s: float = 0.02
    spread: float = 1.0


PROFILES = {
    "quiet": Profile({"http": 4, "grpc": 4, "health": 1, "chat": 0.5}, longest_pause_s=0.2),
    "mixed": Profile(
        {
            "http": 6,
            "pipelining": 3,
            "grpc": 6,
            "streams": 3,
            "grpc_streams": 3,
            "sequences": 3,
            "chat": 2,
            "large": 1,
            "health": 1,
            "regions": 1,
        },
        rudeness=0.02,
        slowness=0.03,
    ),
    "hostile": Profile(
        {
            "http": 3,
            "pipelining": 2,
            "grpc": 3,
            "streams": 2,
            "grpc_streams": 2,
            "sequences": 2,
            "invalid_http": 3,
            "invalid_grpc": 3,
            "large": 1,
            "regions": 2,
        },
        rudeness=0.3,
        slowness=0.2,
    ),
    # Many requests at the same moment, which wait for one another and travel together.
    "crowd": Profile(
        {"alike": 12, "http": 2, "grpc": 2, "pipelining": 1, "sequences": 2, "streams": 1},
        rudeness=0.05,
        slowness=0.02,
        longest_pause_s=0.0002,
        longest_work_s=0.002,
        spread=0.01,
    ),
    "streams": Profile({"streams": 3, "grpc_streams": 4, "chat": 2}, rudeness=0.1, slowness=0.1),
    "formats": Profile(
        {"compressed": 4, "completions": 2, "text_sequences": 3, "http": 1},
        rudeness=0.03,
        slowness=0.03,
    ),
    "regions": Profile({"regions": 8, "http": 1, "grpc": 1}, rudeness=0.05, slowness=0.05),
    "sequences": Profile(
        {"sequences": 6, "http": 1, "grpc": 1}, rudeness=0.03, longest_pause_s=0.002
    ),
    # Requests that are under way for long enough that the server is told to stop meanwhile.
    "stopping": Profile(
        {
            "http": 4,
            "pipelining": 2,
            "grpc": 4,
            "streams": 3,
            "grpc_streams": 3,
            "sequences": 3,
            "chat": 1,
            "large": 1,
            "health": 1,
            "regions": 1,
            "management": 0.5,
        },
        rudeness=0.03,
        slowness=0.05,
        longest_work_s=0.3,
    ),
    # Few bytes that could make much work; what each read costs is counted.
    "floods": Profile({"resizing": 2, "grpc": 1, "grpc_streams": 1, "http": 1}),
    "management": Profile(
        {"management": 5, "http": 4, "grpc": 4, "sequences": 2, "grpc_streams": 2, "health": 2},
        longest_work_s=0.1,
    ),
}
# Which clients of the HTTP port speak HTTP/2. Their calls are made as before, so that seeds make
# the same of all others.
_HTTP2_EVERY = 3
_LONG_STREAM = 200
_RESIZED_STREAMS = 60
_WINDOW_ENTRIES = b"".join(struct.pack(">HI", 4, 1 << 16 | number) for number in range(40 * 31))
ROW_MODELS = ("double", "pipeline", "limited", "caller")
MANAGED_MODELS = ("slow", "limited", "strings", "cached", "double", "accumulate_direct", "stream")


_SHARED_BYTES = 64 << 10  # of memory that clients share, beside a large tensor
_LARGE_ELEMENTS = 1 << 17
_LARGE_BYTES = 2 * 4 * _LARGE_ELEMENTS + 4096


class _Slots:
    """An object of shared memory, whose parts are given to calls, each once."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.used = 0

    def take(self, region: str, size: int, gap: int) -> Place:
        """A part after those that were given before; nothing lies in the gap."""
        place = Place(region, self.used + gap, size)
        self.used = place.offset + size
        return place


def _speak_http2(plan: ClientPlan) -> None:
    """Let a client speak HTTP/2 on the HTTP port."""
    plan.is_http2 = True
    invalid = itertools.count()
    for call in plan.calls:
        # Requests on different streams may overtake one another, so their client waits.
        call.waits |= call.sequence is not None
        is_request = call.payload in HTTP2_REQUESTS or call.payload in WRONG_CODINGS
        if call.kind is Kind.INVALID and (next(invalid) % 2 or not is_request):
            call.text = FRAMES
            call.payload = GRPC_FRAMES[call.number % len(GRPC_FRAMES)]


class Generator:
    """Makes the plans of clients.

    Args:
        source: only its method `random` is used.
        profile: a name of `PROFILES`, or a profile.
        served: names of the models that the server has.
        first_number: number of the first call; numbers of calls are unique in a run.
        key_prefix: names of objects of shared memory begin with it.
    """

    def __init__(
        self,
        source: random.Random,
        profile: str | Profile,
        served: Sequence[str],
        first_number: int = 1,
        key_prefix: str = "workload",
    ) -> None:
        self.dice = Dice(source)
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.served = tuple(served)
        self._numbers = itertools.count(first_number)
        self._sequences = itertools.count(first_number)
        self._clients = itertools.count(1)
        self._memories = itertools.count(first_number)
        self._key_prefix = key_prefix
        self._shared = _Slots(self._new_key())
        self._known = [name for name in self.served if name != models.TEXT_SEQUENCE_MODEL]
        self._rows = [name for name in ROW_MODELS if name in self.served]
        self._favourite = ""  # model of the clients that send the same again and again

    def plans(self, clients: int, calls: int, spread_s: float = 1.0) -> list[ClientPlan]:
        """So many clients with about so many calls each, which begin within `spread_s`."""
        return [self.plan(calls, self.dice.random() * spread_s) for _ in range(clients)]

    def plan(self, calls: int, start_s: float = 0.0) -> ClientPlan:
        """One client."""
        habit = self.dice.weigh(self.profile.habits)
        port, make = HABITS[habit]
        if port is None:
            port = Port.HTTP if self.dice.chance(0.5) else Port.GRPC
        made: list[Call] = []
        source = make(self, port)
        while len(made) < calls:
            made += next(source)
        for call in made:
            self._give_manners(call)
        window = self.dice.choose((1 << 20, 1 << 16, 1 << 12))
        plan = ClientPlan(next(self._clients), port, start_s, made, window)
        if port is Port.HTTP and plan.number % _HTTP2_EVERY == 0:
            _speak_http2(plan)
        return plan

    # Calls of one kind

    def number(self) -> int:
        return next(self._numbers)

    def pause_s(self) -> float:
        return self.dice.random() * self.profile.longest_pause_s

    def work_us(self) -> int:
        if self.dice.chance(0.5):
            return 0
        return int(self.dice.random() * self.profile.longest_work_s * 1e6)

    def each_model(self, port: Port) -> list[Call]:
        """Calls of every model and of its readiness, one after the other."""
        calls = []
        for name in self.served:
            calls.append(Call(self.number(), Kind.MODEL_READY, port, name))
            if name in self._rows or name in _SINGLE:
                calls.append(self.infer(port, name))
            elif name == "stream":
                calls.append(self.stream(port))
            elif name == "large":
                calls += next(self.large(port))
            elif name in (*models.SEQUENCE_MODELS, models.TEXT_SEQUENCE_MODEL):
                calls += self._sequence(port, name, length=2, waits=True)
            elif port is Port.HTTP:
                calls += next(self.chat(port))
        for lane, call in enumerate(calls, 1):
            if call.kind is Kind.STREAM and port is Port.GRPC:
                call.lane, call.closes_lane = lane, True
        return [*calls, Call(self.number(), Kind.READY, port)]

    def infer(self, port: Port, model: str = "", **settings: Any) -> Call:
        """An inference of a model that answers once: this one, or any."""
        names = [*self._rows * 2, *(n for n in _SINGLE if n in self.served)]
        model = model or self.dice.choose(names)
        call = Call(self.number(), Kind.INFER, port, model, **settings)
        call.form = Form.TEXT if self.dice.chance(0.3) else Form.BINARY
        _FILL.get(model, Generator._fill_rows)(self, call)
        return call

    def _fill_rows(self, call: Call) -> None:
        rows = 1 if self.dice.chance(0.7) else self.dice.integer(2, models.MAX_ROWS)
        call.inputs = models.rows_of(call.number, rows)
        if call.port is Port.HTTP and rows == 1 and self.dice.chance(0.1):
            call.kind = Kind.GENERATE

    def _fill_texts(self, call: Call) -> None:
        is_exotic = call.form is Form.BINARY and self.dice.chance(0.5)
        rows = self.dice.integer(1, 3)
        call.inputs = models.texts_of(call.number, rows, is_exotic=is_exotic)

    def _fill_slow(self, call: Call) -> None:
        delay_us = self.work_us()
        call.inputs = models.slow_inputs(call.number, delay_us)
        call.work_s = delay_us / 1e6
        call.priority = self.dice.integer(0, models.SLOW_PRIORITIES)
        if self.dice.chance(0.2):
            call.timeout_us = self.dice.integer(1, 200_000)
        if call.port is Port.GRPC and self.dice.chance(0.2):
            call.deadline_s = self.dice.random() * 2 * self.profile.longest_work_s + 1e-6

    def _fill_fails(self, call: Call) -> None:
        call.inputs = models.fails_inputs(call.number, fails=self.dice.chance(0.5))

    def _fill_cached(self, call: Call) -> None:
        call.inputs = models.cached_rows(self.dice.integer(0, models.CACHE_KEYS - 1))

    def stream(self, port: Port, **settings: Any) -> Call:
        """A request of the decoupled model."""
        call = Call(self.number(), Kind.STREAM, port, "stream", **settings)
        if port is Port.HTTP and self.dice.chance(0.3):
            call.kind = Kind.EVENTS
        if self.dice.chance(0.9):
            count = self.dice.integer(1, 12)
        else:
            count = self.dice.choose((1, 200, 1000))
        if port is Port.GRPC and self.dice.chance(0.05):
            count = 0
        delay_us = 0 if count > 12 else self.work_us()
        call.inputs = models.stream_inputs(call.number, count, delay_us)
        call.stream_length = count
        call.work_s = count * delay_us / 1e6
        return call

    def _give_manners(self, call: Call) -> None:
        if call.kind is Kind.INVALID:
            return
        if self.profile.slowness and call.stream_length >= _LONG_STREAM and self.dice.chance(0.3):
            # Whoever stops reading here holds back what fills all buffers on the way.
            pause_s = 0.2 + self.dice.random() * 0.5
            leaves = call.kind in INFERENCES and self.dice.chance(10 * self.profile.rudeness)
            call.conduct = Conduct(
                read_pause_after_bytes=self.dice.integer(1, 20_000),
                read_pause_s=pause_s,
                cancel_after_s=0.15 if leaves else None,
            )
            return
        if self.dice.chance(self.profile.rudeness) and call.kind in INFERENCES:
            call.conduct = self._rude(call)
        elif self.dice.chance(self.profile.slowness):
            call.conduct = self._slow(call)

    def _rude(self, call: Call) -> Conduct:
        dice = self.dice
        how = dice.integer(0, 3)
        cut = dice.choose((Cut.ABORT, Cut.CLOSE, Cut.HALF))
        if how == 0:
            longest_s = max(self.profile.longest_work_s, call.work_s) * 1.5
            return Conduct(cancel_after_s=dice.random() * longest_s, cut=cut)
        if how == 1:
            return Conduct(cut_after_sent_bytes=dice.integer(1, 400), cut=cut)
        if how == 2:
            return Conduct(cut_after_received_bytes=dice.integer(1, 600), cut=cut)
        return Conduct(
            piece_bytes=dice.integer(1, 100),
            piece_pause_s=dice.random() * 0.005,
            cut_after_sent_bytes=dice.integer(1, 400),
            cut=cut,
        )

    def _slow(self, call: Call) -> Conduct:
        dice = self.dice
        if dice.chance(0.5):
            size = sum(len(each.raw) for each in call.inputs) + 400
            piece = dice.integer(1, 200) + size // 20
            return Conduct(piece_bytes=piece, piece_pause_s=dice.random() * 0.01)
        pause_s = dice.random() * 0.2
        return Conduct(read_pause_after_bytes=dice.integer(1, 500), read_pause_s=pause_s)

    # Habits: each yields what a client sends next, without end

    def http(self, port: Port) -> Iterator[list[Call]]:
        while True:
            yield [self.infer(port, pause_s=self.pause_s())]

    def pipelining(self, port: Port) -> Iterator[list[Call]]:
        while True:
            first = self.infer(port, pause_s=self.pause_s())
            more = [self.infer(port, waits=False) for _ in range(self.dice.integer(1, 12))]
            yield [first, *more]

    def grpc(self, port: Port) -> Iterator[list[Call]]:
        """Calls of which several are open at a time."""
        while True:
            # Those of one model that come at once travel together.
            is_burst = self.dice.chance(0.5)
            model = self.dice.choose(self._rows) if is_burst and self._rows else ""
            calls = [
                self.infer(port, model, waits=False, pause_s=0.0 if is_burst else self.pause_s())
                for _ in range(self.dice.integer(1, 8))
            ]
            calls[0].waits, calls[0].pause_s = True, self.pause_s()
            yield calls

    def alike(self, port: Port) -> Iterator[list[Call]]:
        """Requests of one form to one model, which is the same for all such clients.

        The server reads a form that it has often seen in another way, and many of them as one.
        """
        if not self._favourite:
            self._favourite = self.dice.choose([*self._rows, "cached"])
        most = self.dice.choose((1, 8, 16)) if port is Port.GRPC else 1
        while True:
            calls = []
            for _ in range(self.dice.integer(1, most)):
                call = Call(self.number(), Kind.INFER, port, self._favourite, waits=False)
                call.inputs = models.rows_of(call.number)
                calls.append(call)
            calls[0].waits, calls[0].pause_s = True, self.pause_s()
            yield calls

    def streams(self, port: Port) -> Iterator[list[Call]]:
        while True:
            yield [self.stream(port, pause_s=self.pause_s())]

    def grpc_streams(self, port: Port) -> Iterator[list[Call]]:
        """Several requests on a ModelStreamInfer, decoupled and not."""
        for lane in itertools.count(1):
            calls = []
            for _ in range(self.dice.integer(1, 6)):
                make = self.stream if self.dice.chance(0.8) else self.infer
                call = make(port, lane=lane, pause_s=self.pause_s(), waits=self.dice.chance(0.5))
                call.kind = Kind.STREAM
                call.deadline_s = None  # it would be that of the whole stream
                calls.append(call)
            calls[0].waits = True
            calls[-1].closes_lane = True
            yield calls

    def resizing(self, port: Port) -> Iterator[list[Call]]:
        """Streams that stay open, then SETTINGS that change their windows again and again."""
        for first in itertools.count(1, _RESIZED_STREAMS):
            calls = []
            for lane in range(first, first + _RESIZED_STREAMS):
                call = Call(self.number(), Kind.STREAM, port, self._rows[0], lane=lane, waits=False)
                call.inputs = models.rows_of(call.number)
                calls.append(call)
            calls[0].waits, calls[0].pause_s = True, self.pause_s()
            last = self.infer(port, self._rows[0])
            last.payload = _WINDOW_ENTRIES
            yield [*calls, last]

    def sequences(self, port: Port) -> Iterator[list[Call]]:
        """Sequences, one after the other: waiting for each answer, or for none."""
        yield from self._sequences_of(port, models.SEQUENCE_MODELS)

    def text_sequences(self, port: Port) -> Iterator[list[Call]]:
        """Sequences whose ids are texts."""
        yield from self._sequences_of(port, (models.TEXT_SEQUENCE_MODEL,))

    def _sequences_of(self, port: Port, names: Sequence[str]) -> Iterator[list[Call]]:
        for lane in itertools.count(1):
            model = self.dice.choose([n for n in names if n in self.served])
            on_lane = port is Port.GRPC and self.dice.chance(0.5)
            length = self.dice.integer(1, min(12, models.LONGEST_SEQUENCE))
            # Unary calls of gRPC may overtake one another, so their client waits.
            waits = self.dice.chance(0.5) or (port is Port.GRPC and not on_lane)
            yield self._sequence(
                port, model, length=length, waits=waits, lane=lane if on_lane else None
            )

    def _sequence(
        self, port: Port, model: str, *, length: int, waits: bool, lane: int | None = None
    ) -> list[Call]:
        key: int | str = next(self._sequences)
        if model == models.TEXT_SEQUENCE_MODEL:
            key = f"sequence \u00fc{key}"
        calls = []
        for index in range(length):
            is_end = index == length - 1
            call = Call(
                self.number(),
                Kind.INFER if lane is None else Kind.STREAM,
                port,
                model,
                models.step_inputs(index),
                sequence=SequenceStep(key, index, index == 0, is_end),
                lane=lane,
                closes_lane=lane is not None and is_end,
                pause_s=self.pause_s() if waits else 0.0,
                waits=waits or index == 0,
            )
            calls.append(call)
        return calls

    def chat(self, port: Port) -> Iterator[list[Call]]:
        while True:
            kind = Kind.CHAT_STREAM if self.dice.chance(0.5) else Kind.CHAT
            call = Call(self.number(), kind, port, "chat", pause_s=self.pause_s())
            call.stream_length = self.dice.integer(1, 20)
            call.text = models.chat_text(call.number, call.stream_length)
            yield [call]

    def completions(self, port: Port) -> Iterator[list[Call]]:
        for (call,) in self.chat(port):
            is_stream = call.kind is Kind.CHAT_STREAM
            call.kind = Kind.COMPLETION_STREAM if is_stream else Kind.COMPLETION
            yield [call]

    def compressed(self, port: Port) -> Iterator[list[Call]]:
        """Compressed requests and answers, some of them large, and some that nobody can read."""
        dice = self.dice
        while True:
            if dice.chance(0.2):
                (call,) = next(self.large(port))
            else:
                call = self.infer(port, pause_s=self.pause_s())
                call.kind = Kind.INFER
            call.coding = dice.choose(("", "gzip", "deflate"))
            accepted = list(ACCEPTED_CODINGS) if port is Port.HTTP else ["", "identity,gzip"]
            call.accepts = dice.choose(accepted)
            yield [call]
            if port is Port.HTTP and dice.chance(0.1):
                payload = dice.choose(WRONG_CODINGS)
                yield [Call(self.number(), Kind.INVALID, port, payload=payload)]

    def large(self, port: Port) -> Iterator[list[Call]]:
        while True:
            call = Call(self.number(), Kind.INFER, port, "large", pause_s=self.pause_s())
            call.inputs = models.large_inputs(call.number, self.dice.integer(1 << 10, 1 << 17))
            yield [call]

    def health(self, port: Port) -> Iterator[list[Call]]:
        kinds = (Kind.LIVE, Kind.READY, Kind.MODEL_READY, Kind.INDEX, Kind.STATISTICS)
        while True:
            kind = self.dice.choose(kinds)
            call = Call(self.number(), kind, port, pause_s=self.pause_s())
            if kind is Kind.MODEL_READY:
                call.model = self.dice.choose(self._known)
            yield [call]

    def management(self, port: Port) -> Iterator[list[Call]]:
        """Unloads and loads models again; reads the index between."""
        names = [name for name in MANAGED_MODELS if name in self.served]
        while True:
            model = self.dice.choose(names)
            kinds = [Kind.UNLOAD, Kind.LOAD] if self.dice.chance(0.7) else [Kind.LOAD]
            if self.dice.chance(0.5):
                kinds.insert(1, Kind.INDEX)
            yield [
                Call(
                    self.number(),
                    kind,
                    port,
                    "" if kind is Kind.INDEX else model,
                    pause_s=self.pause_s() * 5,
                )
                for kind in kinds
            ]

    def regions(self, port: Port) -> Iterator[list[Call]]:
        """Shared memory: registered, used, and given up, not always in this order."""
        for lane in itertools.count(1):
            slots = self._shared if self.dice.chance(0.2) else _Slots(self._new_key())
            if slots.used > _SHARED_BYTES:
                slots = self._shared = _Slots(self._new_key())
            yield self._episode(port, slots, lane)

    def _new_key(self) -> str:
        return f"{self._key_prefix}-{next(self._memories)}"

    def _episode(self, port: Port, slots: _Slots, lane: int) -> list[Call]:
        """The life of one region, of memory that others may share."""
        dice = self.dice
        is_shared = slots is self._shared
        name = slots.key if is_shared else f"{slots.key} \u00fc{dice.integer(1, 3)}"
        offset = 0 if is_shared else dice.choose((0, 0, 1, 4096))
        count = dice.integer(1, 5)
        used_lane = lane if port is Port.GRPC and dice.chance(0.3) else None
        uses = [self._region_use(port, slots, name, used_lane) for _ in range(count)]
        uses[-1].closes_lane = used_lane is not None
        size = _SHARED_BYTES + _LARGE_BYTES if is_shared else slots.used + dice.integer(0, 64)
        key = f"/{slots.key}" if dice.chance(0.5) else slots.key
        region = Region(key, offset, size)
        register = Call(self.number(), Kind.REGISTER, port, text=name, region=region)
        register.acts = (MemoryAct(slots.key, offset + size),)
        register.pause_s = self.pause_s()
        unregister = Call(self.number(), Kind.UNREGISTER, port, text=name)
        calls = [register, *uses, unregister]
        if is_shared and dice.chance(0.7):
            calls.pop()  # others go on to use it
        elif not is_shared:
            self._make_trouble(calls, slots.key, offset + size)
        if dice.chance(0.5):
            status = Call(self.number(), Kind.REGIONS, port, text=dice.choose(("", name)))
            calls.insert(dice.integer(0, len(calls)), status)
        return calls

    def _make_trouble(self, calls: list[Call], key: str, size: int) -> None:
        """Let something go wrong, or not, with a region that no other client uses."""
        dice = self.dice
        trouble = dice.integer(0, 15)
        at = dice.integer(1, len(calls) - 1)
        calls[1].waits |= trouble <= 8  # for the registration
        if trouble == 0:  # it is given up while requests use it
            calls.insert(at, calls.pop())
            calls[at].waits = False
        elif trouble == 1:
            smaller = dice.integer(0, size - 1)
            calls[at].acts = (MemoryAct(key, smaller, only_makes=False),)
            if dice.chance(0.5) and at + 1 < len(calls):
                calls[at + 1].acts = (MemoryAct(key, size, only_makes=False),)
        elif trouble == 2:
            calls[at].acts = (MemoryAct(key, None),)
        elif trouble == 3:
            calls[-1].text = dice.choose((f"{calls[-1].text} of nobody", ""))
        elif trouble == 4:
            calls.pop()
        elif trouble <= 8:
            self._register_wrongly(calls, at, trouble, key, size)

    def _register_wrongly(
        self, calls: list[Call], at: int, trouble: int, key: str, size: int
    ) -> None:
        register = calls[0]
        assert register.region is not None
        again = Call(self.number(), Kind.REGISTER, register.port, text=register.text)
        again.region = register.region
        if trouble == 5:
            calls.insert(at, again)
        elif trouble == 6:  # the name stands for other memory later
            calls[at].acts = (MemoryAct(key, None), MemoryAct(key, size))
            calls.append(again)
        elif trouble == 7:
            wrong_size = self.dice.choose((0, size + 1))
            register.region = register.region._replace(byte_size=wrong_size)
        else:
            wrong_key = self.dice.choose((f"{key}-nobody", "psm_workload"))
            register.region = register.region._replace(key=wrong_key)

    def _region_use(self, port: Port, slots: _Slots, name: str, lane: int | None) -> Call:
        """An inference with inputs, outputs or both in a region."""
        dice = self.dice
        waits = dice.chance(0.5)
        if lane is not None and dice.chance(0.5):
            call = self.stream(port, lane=lane, waits=waits)
        elif dice.chance(0.2):
            call = Call(self.number(), Kind.INFER, port, "large", waits=waits, lane=lane)
            call.inputs = models.large_inputs(call.number, dice.integer(1 << 10, _LARGE_ELEMENTS))
        else:
            call = self.infer(port, waits=waits, lane=lane)
            call.kind = Kind.INFER
        if lane is not None:
            call.kind = Kind.STREAM
            call.deadline_s = None
        call.pause_s = self.pause_s()
        where = dice.integer(1, 3)
        places = {}
        if where & 1:
            # What a model is told to do is sent, as memory may have anything in it.
            given = next(each for each in call.inputs if each.name in ("IN", "TAG"))
            places[given.name] = slots.take(name, len(given.raw), dice.integer(0, 9))
        if where & 2:
            answers = [] if models.failure_of(call) else models.ANSWERS[call.model](call)
            sizes = [len(each.raw) for outputs in answers for each in outputs]
            room = max(sizes, default=4) + dice.choose((0, 0, 1, 100))
            places["OUT"] = slots.take(name, room, dice.integer(0, 9))
        if dice.chance(0.1):
            wrong = dice.choose(list(places))
            places[wrong] = self._wrong_place(places[wrong])
        call.places = places
        return call

    def _wrong_place(self, place: Place) -> Place:
        choice = self.dice.integer(0, 4)
        if choice == 0:
            return place._replace(region=f"{place.region} of nobody")
        if choice == 1:
            return place._replace(offset=1 << 40)
        if choice == 2:
            return place._replace(byte_size=place.byte_size - 1)
        if choice == 3:
            return place._replace(byte_size=1 << 40)
        return place._replace(offset=(1 << 64) - 1)

    def invalid_http(self, port: Port) -> Iterator[list[Call]]:
        """What nobody should send, and good requests between."""
        while True:
            payload = self.dice.choose(HTTP_REQUESTS)
            invalid = Call(self.number(), Kind.INVALID, port, payload=payload)
            yield [self.infer(port, pause_s=self.pause_s()), invalid]

    def invalid_grpc(self, port: Port) -> Iterator[list[Call]]:
        while True:
            invalid = Call(self.number(), Kind.INVALID, port)
            if self.dice.chance(0.5):
                invalid.text, invalid.payload = self.dice.choose(GRPC_CALLS)
            else:
                invalid.payload = self.dice.choose(GRPC_FRAMES)
            yield [self.infer(port, pause_s=self.pause_s()), invalid]


_SINGLE = ("strings", "slow", "fails", "cached")
_FILL: dict[str, Callable[[Generator, Call], None]] = {
    "strings": Generator._fill_texts,
    "slow": Generator._fill_slow,
    "fails": Generator._fill_fails,
    "cached": Generator._fill_cached,
}
Habit = Callable[[Generator, Port], Iterator[list[Call]]]
# The port of a habit; None for either.
HABITS: dict[str, tuple[Port | None, Habit]] = {
    "http": (Port.HTTP, Generator.http),
    "pipelining": (Port.HTTP, Generator.pipelining),
    "grpc": (Port.GRPC, Generator.grpc),
    "alike": (None, Generator.alike),
    "streams": (Port.HTTP, Generator.streams),
    "grpc_streams": (Port.GRPC, Generator.grpc_streams),
    "resizing": (Port.GRPC, Generator.resizing),
    "sequences": (None, Generator.sequences),
    "chat": (Port.HTTP, Generator.chat),
    "completions": (Port.HTTP, Generator.completions),
    "compressed": (None, Generator.compressed),
    "text_sequences": (None, Generator.text_sequences),
    "large": (None, Generator.large),
    "health": (None, Generator.health),
    "management": (None, Generator.management),
    "regions": (None, Generator.regions),
    "invalid_http": (Port.HTTP, Generator.invalid_http),
    "invalid_grpc": (Port.GRPC, Generator.invalid_grpc),
}
