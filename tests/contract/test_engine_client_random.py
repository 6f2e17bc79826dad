# SPDX-License-Identifier: Apache-2.0
"""Random requests through an engine's client: each ends once, rightly, and nothing is left."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.serving.engine.model import Model
from tests.column_rig import WIDTH, DoublingInstance, random_details
from tests.contract.seam import Seam, doubled, doubling_spec
from tests.fakes import RecordingSink

# The requests of one run; 100000 take about a minute.
REQUESTS = int(os.environ.get("PYTRITON_SEAM_REQUESTS", "10000"))
SEEDS = range(6)
# Most errors that a request may end with; "no" is that of a model.
ERRORS = {
    "",
    "no",
    "not this one",
    "its process ended",
    "Request timeout expired",
    "[request id: <id_unknown>] Exceeds maximum queue size",
    "Request for unknown model: 'm' version 1 is not at ready state",
}


class Account:
    """What was submitted, and how it ended: the sink of all requests and chunks."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.submitted = 0
        self.open: dict[int, list[int]] = {}  # the values of requests by number
        self.faults: list[str] = []  # a sink that raises would only be logged
        self.answered: list[int] = []  # their numbers, in the order of answers

    def submit(self, values: list[int]) -> int:
        self.submitted += 1
        self.open[self.submitted] = values
        return self.submitted

    def end(self, number: int, values: dict[str, list[int]] | None, error: str) -> None:
        asked = self.open.pop(number, None)
        if asked is None:
            self.faults.append(f"{number} ended again")
        elif values is None and error not in ERRORS:
            self.faults.append(f"{number}: {error}")
        elif values is not None and values != doubled(asked):
            self.faults.append(f"{number}: {asked} was answered by {values}")
        if values is not None:
            self.answered.append(number)
        self.ends[error if values is None else "answer"] += 1


class Sink(RecordingSink):
    """The sink of one request."""

    def __init__(self, account: Account, number: int) -> None:
        super().__init__()
        self._account = account
        self._number = number

    def on_response(self, response, *, final):
        assert final
        values = {
            tensor.name: list(memoryview(tensor.data).cast("i")) for tensor in response.outputs
        }
        self._account.end(self._number, values, "")

    def on_error(self, error, *, final=True):
        assert final
        self._account.end(self._number, None, error.message)


class ChunkEnds:
    """The sink of one chunk."""

    def __init__(self, account: Account, numbers: list[int]) -> None:
        self._account = account
        self._numbers = numbers

    def on_rows(self, chunk, first, end, outputs, row):
        starts = chunk.row_starts
        for index in range(first, end):
            at, size = row + starts[index] - starts[first], starts[index + 1] - starts[index]
            values = {}
            for column in outputs:
                data = column.data[at * column.row_bytes : (at + size) * column.row_bytes]
                values[column.name] = list(memoryview(bytes(data)).cast("i"))
            self._account.end(self._numbers[index], values, "")

    def on_outcome(self, chunk, index, response, error, *, is_refused):
        sink = Sink(self._account, self._numbers[index])
        if error is not None:
            sink.on_error(error)
        else:
            sink.on_response(response, final=True)


class Play:
    """One random run."""

    def __init__(self, seam: Seam, dice: random.Random) -> None:
        self.dice = dice
        self.account = Account()
        self._seam = seam
        self._spec = doubling_spec(
            dice.choice([1, 4, 16]),
            BatcherSpec(
                max_queue_delay_us=dice.choice([0, 0, 200]),
                preserve_ordering=dice.random() < 0.4,
                priority_levels=3,
                default_priority_level=2,
                default_queue_policy=QueuePolicySpec(
                    default_timeout_us=dice.choice([0, 20_000]),
                    allow_timeout_override=True,
                    max_queue_size=dice.choice([0, 60]),
                ),
            ),
        )
        self._running: list = []  # handles that may be cancelled
        self._instances: list[DoublingInstance] = []
        self._draining: list = []
        self._next = 0
        self.model = self._new_model()
        seam.run()

    @property
    def is_ordered(self) -> bool:
        return self._spec.is_ordered

    def _new_model(self) -> Model:
        model = Model(self._spec, self._seam.loop)
        for number in range(self.dice.randint(1, 3)):
            instance = DoublingInstance(f"m_{number}", model)
            self._instances.append(instance)
            model.add_instance(instance)
        self._seam.engine.add(model)
        self._seam.engine.set_ready(model)
        return model

    def _values(self) -> list[int]:
        rows = self.dice.randint(1, min(3, self._spec.max_batch_size))
        self._next += rows * WIDTH
        return list(range(self._next - rows * WIDTH, self._next))

    def act(self) -> None:
        what = self.dice.random()
        if what < 0.25:
            self._submit()
        elif what < 0.35:
            self._submit_chunk()
        elif what < 0.45 and self._running:
            self._running[self.dice.randrange(len(self._running))].cancel()
        elif what < 0.455 and not self.is_ordered:
            self._replace()
        elif what < 0.65:
            self._seam.loop.run()
        else:
            self._answer()

    def _submit(self) -> None:
        values = self._values()
        sink = Sink(self.account, self.account.submit(values))
        call = self._seam.infer(values, sink=sink, **random_details(self.dice))
        self._running.append(call.inference)

    def _submit_chunk(self) -> None:
        model = self._seam.client.find("m")
        if model is None:
            return
        values = [self._values() for _ in range(self.dice.randint(1, 12))]
        ends = ChunkEnds(self.account, [self.account.submit(each) for each in values])
        details = None
        if self.dice.random() < 0.3:
            details = [random_details(self.dice) for _ in values]
        joined = self.dice.random() < 0.5
        _, members = self._seam.chunk(
            values, model=model, ends=ends, details=details, joined=joined
        )
        self._running += members

    def _replace(self) -> None:
        old, self.model = self.model, self._new_model()
        self._draining.append(self._seam.loop.create_task(self._seam.engine.unload(old)))

    def _answer(self) -> None:
        self._running = [each for each in self._running if not each.is_over]
        busy = [instance for instance in self._instances if instance.running]
        if not busy:
            self._seam.loop.run()
            return
        instance = self.dice.choice(busy)
        what = self.dice.random()
        if what < 0.8:
            instance.double()
        elif what < 0.9:
            instance.double_by_item(error="not this one")
        else:
            instance.fail()

    def end(self) -> None:
        """Answer all that is left."""

        def is_over() -> bool:
            for instance in self._instances:
                while instance.running:
                    instance.double()
            return not self.account.open and all(task.done() for task in self._draining)

        self._seam.until(is_over)


def count_descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_ends_once_and_rightly_and_nothing_is_left(seam, seed):
    descriptors = count_descriptors()
    play = Play(seam, random.Random(seed))
    while play.account.submitted < REQUESTS // len(SEEDS):
        play.act()
    play.end()
    seam.until_nothing_is_left()

    account = play.account
    assert account.faults == []
    assert sum(account.ends.values()) == account.submitted
    assert account.ends["answer"] > 0
    if play.is_ordered:
        assert account.answered == sorted(account.answered)
    assert play.model.statistics.pending_count == 0
    assert ": 0 queued, 0 running" in repr(play.model)
    # The arenas of both sides keep a segment each, which both have mapped.
    assert count_descriptors() <= descriptors + 2 * len(seam.front_ends)
