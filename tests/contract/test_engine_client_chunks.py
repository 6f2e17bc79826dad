# SPDX-License-Identifier: Apache-2.0
"""Small requests that travel as chunks: the same in the engine's process and over a front end."""

from __future__ import annotations

import gc
import json

import pytest

from pytriton.base.errors import UNEXPECTED, UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.serving.server.frontend import chunks, core_link
from pytriton.serving.server.http import columns as http_columns
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.options.server_options import ServerOptions
from tests.contract.seam import doubled
from tests.server.http_fakes import Client, post

KINDS = pytest.mark.parametrize("joined", [True, False], ids=["joined", "pieces"])
ONES = [[1, 2], [3, 4], [5, 6]]
MIXED = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11, 12]]


@KINDS
@pytest.mark.parametrize("values", [ONES, MIXED], ids=["single rows", "several rows"])
def test_members_of_a_chunk_run_together_and_are_answered_by_one_call(seam, joined, values):
    model, (instance,) = seam.doubling()
    chunk, members = seam.chunk(values, joined=joined)
    seam.run()
    seam.finish(instance)

    assert [frame.rows for frame in instance.frames] == [[len(each) // 2 for each in values]]
    assert seam.ends.of(chunk) == [doubled(each) for each in values]
    assert seam.ends.runs == [(0, 3)]
    assert all(member.is_over for member in members)
    assert model.statistics.success_count == 3


@KINDS
def test_chunk_that_does_not_fit_is_divided_between_requests(seam, joined):
    _, (instance,) = seam.doubling(max_batch_size=3)
    chunk, _ = seam.chunk(MIXED, joined=joined)
    seam.run()
    seam.finish(instance)

    assert [frame.rows for frame in instance.frames] == [[2, 1], [3]]
    assert seam.ends.of(chunk) == [doubled(each) for each in MIXED]


def test_chunk_of_many_requests_is_answered(seam):
    _, (instance,) = seam.doubling(max_batch_size=100_000)
    values = [[number, 1] for number in range(20_000)]  # 160 kB for each input
    chunk, _ = seam.chunk(values)
    seam.run()
    seam.finish(instance)

    assert seam.ends.of(chunk) == [doubled(each) for each in values]


def test_chunks_and_ordinary_requests_share_a_batch(seam):
    _, (instance,) = seam.doubling(max_batch_size=32)
    before = seam.infer([1, 2, 3, 4])
    first, _ = seam.chunk(MIXED)
    between = seam.infer([5, 6])
    second, _ = seam.chunk(ONES, joined=True)
    seam.run()
    seam.finish(instance)

    assert len(instance.frames) == 1
    assert seam.ends.of(first) == [doubled(each) for each in MIXED]
    assert seam.ends.of(second) == [doubled(each) for each in ONES]
    assert (before.values, between.values) == (doubled([1, 2, 3, 4]), doubled([5, 6]))


def test_members_get_only_the_outputs_that_they_want(seam):
    _, (instance,) = seam.doubling()
    some, _ = seam.chunk(ONES, wanted=("y",))
    every, _ = seam.chunk(ONES)
    seam.run()
    seam.finish(instance)

    assert seam.ends.of(some) == [doubled(each, ("y",)) for each in ONES]
    assert seam.ends.of(every) == [doubled(each) for each in ONES]


def test_model_without_a_batch_dimension_runs_members_one_by_one(seam):
    _, (instance,) = seam.doubling(max_batch_size=0)
    chunk, _ = seam.chunk(ONES)
    seam.run()
    seam.finish(instance)

    assert [ref.shape for ref in instance.frames[0].inputs] == [(2,), (2,)]
    assert seam.ends.of(chunk) == [doubled(each) for each in ONES]


def test_members_with_answers_of_their_own_get_them(seam):
    _, (instance,) = seam.doubling()
    chunk, _ = seam.chunk(ONES)
    seam.run()
    instance.double_by_item(error="not this one")
    seam.run()

    assert seam.ends.of(chunk) == [("failed", "not this one"), *map(doubled, ONES[1:])]
    assert seam.ends.runs == []


@pytest.mark.parametrize("end, text", [("fail", "no"), ("die", "its process ended")])
def test_each_member_of_a_failed_batch_gets_the_error(seam, end, text):
    _, (instance,) = seam.doubling()
    chunk, _ = seam.chunk(ONES)
    seam.run()
    getattr(instance, end)()
    seam.run()

    assert seam.ends.of(chunk) == [("failed", text)] * 3


def test_batch_that_cannot_be_sent_fails_its_members(seam):
    _, (instance,) = seam.doubling()
    instance.refusal = UnavailableError("no room")
    chunk, _ = seam.chunk(ONES)
    seam.run()

    assert seam.ends.of(chunk) == [("failed", "no room")] * 3


def test_members_beyond_the_queue_size_are_refused(seam):
    policy = QueuePolicySpec(max_queue_size=2)
    batcher = BatcherSpec(default_queue_policy=policy)
    _, (instance,) = seam.doubling(max_batch_size=1, batcher=batcher)
    running, _ = seam.chunk(ONES[:1])
    seam.run()
    chunk, _ = seam.chunk(ONES)
    seam.run()
    seam.finish(instance)

    text = "[request id: <id_unknown>] Exceeds maximum queue size"
    assert seam.ends.of(running) == [doubled(ONES[0])]
    assert seam.ends.of(chunk) == [*map(doubled, ONES[:2]), ("refused", text)]


def test_chunk_of_which_every_member_is_refused_is_forgotten(seam):
    policy = QueuePolicySpec(max_queue_size=1)
    batcher = BatcherSpec(default_queue_policy=policy)
    _, (instance,) = seam.doubling(max_batch_size=1, batcher=batcher)
    seam.chunk(ONES[:1])
    seam.run()
    seam.chunk(ONES[:1])
    seam.run()
    chunk, _ = seam.chunk(ONES)
    seam.run()

    assert {kind for kind, _ in seam.ends.of(chunk)} == {"refused"}
    seam.finish(instance)


@pytest.mark.parametrize("values", [ONES, MIXED], ids=["single rows", "several rows"])
def test_members_of_a_higher_priority_run_first(seam, values):
    batcher = BatcherSpec(priority_levels=2, default_priority_level=2)
    _, (instance,) = seam.doubling(max_batch_size=3, batcher=batcher)
    seam.chunk([[1, 2, 3, 4, 5, 6]])
    seam.run()
    chunk, _ = seam.chunk(values, details=[{}, {}, {"priority": 1}])
    seam.run()
    instance.double()
    seam.run()

    rows = [len(each) // 2 for each in values]
    assert instance.frames[1].rows[0] == rows[2]
    assert instance.frames[1].inputs[0].size >= 8 * rows[2]
    seam.finish(instance)
    assert seam.ends.of(chunk) == [doubled(each) for each in values]
    assert seam.ends.runs[1] == (2, 3)


def test_member_whose_queue_timeout_is_over_ends(seam):
    policy = QueuePolicySpec(default_timeout_us=10**8, allow_timeout_override=True)
    batcher = BatcherSpec(default_queue_policy=policy)
    _, (instance,) = seam.doubling(max_batch_size=1, batcher=batcher)
    seam.chunk(ONES[:1])
    seam.run()
    chunk, members = seam.chunk(ONES[:2], details=[{"timeout_us": 1000}, {}])
    seam.until(lambda: members[0].is_over)
    seam.finish(instance)

    assert seam.ends.of(chunk) == [("failed", "Request timeout expired"), doubled(ONES[1])]


@KINDS
def test_cancelled_members_in_the_queue_end_and_their_neighbours_run(seam, joined):
    _, (instance,) = seam.doubling(max_batch_size=3)
    seam.chunk([[1, 2, 3, 4, 5, 6]])
    seam.run()
    chunk, members = seam.chunk(ONES, joined=joined)
    members[0].cancel()  # in the iteration that submits it
    seam.run()
    members[1].cancel()
    members[1].cancel()
    seam.run()

    assert [member.is_over for member in members] == [True, True, False]
    seam.finish(instance)
    members[2].cancel()
    seam.run()
    assert seam.ends.of(chunk) == [("failed", ""), ("failed", ""), doubled(ONES[2])]


def test_instance_hears_that_a_running_member_was_cancelled(seam):
    _, (instance,) = seam.doubling()
    chunk, members = seam.chunk(ONES)
    seam.run()
    members[1].cancel()
    seam.run()

    assert instance.cancelled == [(1, 1)]
    seam.finish(instance)
    assert seam.ends.of(chunk) == [doubled(each) for each in ONES]


def test_sink_that_fails_on_rows_is_told_of_each_member(seam):
    _, (instance,) = seam.doubling()
    seam.ends.failure = ValueError()
    chunk, _ = seam.chunk(ONES)
    call = seam.infer()
    seam.run()
    seam.finish(instance)

    assert seam.ends.of(chunk) == [("failed", UNEXPECTED)] * 3
    assert call.values == doubled([1, 2])


class NamedEnds:
    """Writes the name of each answered member to a log."""

    def __init__(self, log, *names):
        self._log = log
        self._names = names

    def on_rows(self, chunk, first, end, outputs, row):
        self._log.extend(self._names[first:end])

    def on_outcome(self, chunk, index, response, error, *, is_refused):
        self._log.append(self._names[index])


def test_chunks_and_ordinary_requests_keep_their_order_if_the_model_says_so(seam):
    batcher = BatcherSpec(preserve_ordering=True)
    _, instances = seam.doubling(instances=6, max_batch_size=1, batcher=batcher)
    seam.infer(name=0)
    seam.chunk(ONES[:2], ends=NamedEnds(seam.log, 1, 2))
    seam.infer(name=3)
    seam.chunk(ONES[:2], ends=NamedEnds(seam.log, 4, 5))
    seam.run()
    assert [instance.running for instance in instances] == [[1]] * 6
    for instance in reversed(instances):
        assert seam.log == []
        instance.double()
        seam.run()

    assert seam.log == [0, 1, 2, 3, 4, 5]


def test_exiting_engine_refuses_chunks_and_finishes_those_that_it_has(seam):
    _, (instance,) = seam.doubling(max_batch_size=3)
    accepted, _ = seam.chunk(ONES)
    seam.run()
    model = seam.client.lookup("m")
    seam.engine.refuse()
    on_its_way, _ = seam.chunk(ONES, model=model)
    seam.run()

    if seam.is_remote:  # a caller in the engine's process asks before it submits
        assert seam.ends.of(on_its_way) == [("refused", "Server exiting")] * 3
    seam.finish(instance)
    assert seam.ends.of(accepted) == [doubled(each) for each in ONES]


def answer_one(seam, instance):
    """Let a front end learn how soon answers come."""
    seam.chunk(ONES)
    seam.run()
    seam.finish(instance)


def test_requests_wait_for_answers_while_the_core_has_enough_chunks(seam, monkeypatch):
    monkeypatch.setattr(chunks, "_QUICK_ANSWER_NS", 10**15)
    monkeypatch.setattr(core_link, "_MAX_WAIT_NS", 10**15)
    _, (instance,) = seam.doubling()
    answer_one(seam, instance)
    model, calls = seam.client.lookup("m"), []

    def waits():
        return seam.client.call_after_answers([model, None], lambda: calls.append(len(calls)))

    answers = [waits()]
    for _ in range(4):
        seam.chunk(ONES)
        answers.append(waits())
    seam.run()
    assert calls == []
    seam.finish(instance)

    if seam.is_remote:
        assert answers == [False, False, False, False, True]
        assert calls == [0]
    else:
        assert not any(answers)
    assert not seam.client.call_after_answers([None], calls.clear)
    assert not waits()  # all are answered


def test_requests_do_not_wait_long_for_answers(seam, monkeypatch):
    monkeypatch.setattr(chunks, "_QUICK_ANSWER_NS", 10**15)
    _, (instance,) = seam.doubling()
    answer_one(seam, instance)
    model, calls = seam.client.lookup("m"), []
    for _ in range(4):
        seam.chunk(ONES)
    waits = seam.client.call_after_answers([model], lambda: calls.append(1))

    assert waits == seam.is_remote
    if waits:
        seam.until(lambda: calls)
    seam.run()
    seam.finish(instance)
    assert calls == [1] * waits


def test_requests_to_a_model_that_answers_slowly_do_not_wait(seam, monkeypatch):
    monkeypatch.setattr(chunks, "_QUICK_ANSWER_NS", 0)
    _, (instance,) = seam.doubling()
    answer_one(seam, instance)
    for _ in range(5):
        seam.chunk(ONES)

    assert not seam.client.call_after_answers([seam.client.lookup("m")], instance.stop)
    seam.run()
    seam.finish(instance)


def test_structures_that_a_front_end_forgets_are_forgotten_by_the_core(seam, monkeypatch):
    monkeypatch.setattr(http_columns, "LEARNED_AFTER", 1)
    monkeypatch.setattr(http_columns, "MAX_LEARNED", 8)
    _, (instance,) = seam.doubling(max_batch_size=16)
    client = Client(HttpApi(seam.client, ServerOptions(), seam.loop))
    sizes, answers = [], []
    for rows in [*range(1, 17), 1, 16]:
        tensor = {"shape": [rows, 2], "datatype": "INT32", "data": [rows] * 2 * rows}
        body = json.dumps({"inputs": [{"name": name, **tensor} for name in "xy"]}).encode()
        body = body.ljust(2048)  # one head for all: each head keeps the last structure with it
        for _ in range(3):  # the first is learned from, the others travel as columns
            client.send(post(body, b"/v2/models/m/infer"))
            seam.run()
            seam.finish(instance)
        answers.append([each["data"] for each in json.loads(client.bodies()[-1])["outputs"]])
        gc.collect()
        for front_end in seam.front_ends:
            sizes.append(len(front_end.session._signatures))
            sizes.append(len(front_end.link._chunks._signatures))

    assert answers == [[[2 * rows] * 2 * rows] * 2 for rows in [*range(1, 17), 1, 16]]
    assert set(client.statuses()) == {200}
    if seam.is_remote:
        assert 8 <= max(sizes) <= 8 + 2, sizes  # those in use when the others are forgotten
