# SPDX-License-Identifier: Apache-2.0
"""Costs of requests: shares add up to what was spent."""

from __future__ import annotations

import random
import types

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.messages import (
    ExecutionTimes,
    InferResponse,
    InferTensor,
    OutputBurst,
    RequestCost,
    ResponseBurst,
)
from pytriton.runtime.executor.inference import Outcome, RunningBatch
from pytriton.serving.engine.batch_stats import record_traces
from pytriton.serving.engine.costs import (
    BYTES_PER_REQUEST,
    CostWatcher,
    ServerCosts,
    TokenUsage,
)
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.stats import FailureReason, ModelStatistics
from tests.fakes import inference, response


class Clock:
    ns = 0

    def read(self):
        return self.ns


def models(count):
    return [types.SimpleNamespace(statistics=ModelStatistics()) for _ in range(count)]


def work(model, requests, size=0):
    model.statistics.record_failures(requests, 0, FailureReason.BACKEND)  # they cost as much
    model.statistics.costs.bytes_in += size


@pytest.mark.parametrize("seed", range(5))
def test_shares_of_the_server_add_up_to_its_time(seed):
    chance, clock = random.Random(seed), Clock()
    served = models(7)
    costs = ServerCosts(lambda: served, clock.read)
    for _ in range(50):
        clock.ns += chance.randrange(10**9)
        for each in chance.sample(served, chance.randrange(7)):
            work(each, chance.randrange(1000), chance.randrange(10**8))
        costs.share()

    shared = sum(each.statistics.costs.server_ns for each in served)
    assert shared + costs.idle_ns == costs.spent_ns == clock.ns


def test_share_is_by_requests_and_bytes():
    clock, served = Clock(), models(3)
    costs = ServerCosts(lambda: served, clock.read)
    clock.ns = 8000
    work(served[0], 1)
    work(served[1], 3, 4 * BYTES_PER_REQUEST)
    costs.share()

    assert [each.statistics.costs.server_ns for each in served] == [1000, 7000, 0]


def test_time_without_requests_is_nobodys():
    clock, served = Clock(), models(1)
    costs = ServerCosts(lambda: served, clock.read)
    clock.ns = 500
    costs.share()
    work(served[0], 1)
    clock.ns = 700
    costs.share()

    assert (costs.idle_ns, served[0].statistics.costs.server_ns) == (500, 200)


def test_model_that_was_loaded_again_begins_from_zero():
    clock, served = Clock(), models(1)
    costs = ServerCosts(lambda: served, clock.read)
    work(served[0], 1000)
    clock.ns = 100
    costs.share()
    served[:] = models(1)
    work(served[0], 1)
    clock.ns = 300
    costs.share()

    assert served[0].statistics.costs.server_ns == 200


def test_trace_has_what_a_batch_cost_once_however_often_its_model_hears_of_it(scene):
    seen = []
    one = scene()
    one.submit(2)
    batch = one.instance.running[0]
    batch.is_traced = True
    for each in batch.inferences:
        each.trace = types.SimpleNamespace(add_execution=lambda *told: seen.append(told[-1]))
    batch.processor_ns, batch.bytes_in, batch.bytes_out = 500, 30, 20
    one.instance.report(batch, [])  # the instance is free, and answers follow
    one.instance.report(batch, [Outcome(0, response())])
    batch.processor_ns, batch.bytes_out = 300, 6
    one.instance.report(batch, [Outcome(1, response())])

    parts = [(each.processor_ns, each.bytes_in, each.bytes_out) for each in seen]
    assert parts == [(500, 15, 20), (300, 15, 6)]


def test_trace_of_several_responses_at_once_has_their_costs_once():
    seen = []
    request = inference()
    request.trace = types.SimpleNamespace(add_execution=lambda *told: seen.append(told[-1]))
    batch = RunningBatch(1, [request], 0, {0}, processor_ns=800, bytes_in=40, bytes_out=8)
    record_traces(batch, [Outcome(0, response(), is_final=False)] * 2, (0, 0))
    request.response_count = 2
    batch.processor_ns, batch.bytes_out = 100, 4
    record_traces(batch, [Outcome(0, response())], (0, 0))

    parts = [(each.processor_ns, each.bytes_in, each.bytes_out) for each in seen]
    assert parts == [(800, 40, 8), (0, 0, 0), (100, 0, 4)]


def test_costs_of_models_can_be_left_out(scene):
    engine, one = Engine(counts_costs=False), scene()
    engine.add(one.model)

    assert one.model.costs is None
    assert one.model.statistics.server_costs is None


def test_trace_has_the_part_of_its_request_by_rows():
    seen = []
    requests = [inference(rows=rows) for rows in (1, 3)]
    for each in requests:
        each.trace = types.SimpleNamespace(add_execution=lambda *told: seen.append(told[-1]))
    batch = RunningBatch(1, requests, 0, set(), processor_ns=800, bytes_in=40, bytes_out=8)
    record_traces(batch, [Outcome(0, response()), Outcome(1, response())], (0, 0))

    parts = [(each.processor_ns, each.bytes_in, each.bytes_out) for each in seen]
    assert parts == [(200, 10, 2), (600, 30, 6)]
    assert all(isinstance(each, ExecutionTimes) for each in seen)


def execution(started_ns, processor_ns=0, bytes_out=0):
    return ExecutionTimes(10, started_ns, 0, 0, 0, processor_ns, 5, bytes_out, bytes_out)


def test_cost_of_a_request_has_all_its_executions_and_each_in_the_queue_once():
    cost = RequestCost()
    watcher = CostWatcher(lambda _: cost)
    watcher.add_execution(0, 1, execution(30, 100, 4))
    watcher.add_execution(0, 1, execution(30, 50, 4))  # another response
    watcher.add_execution(0, 1, execution(60, 7, 4))

    assert cost == RequestCost(2, 157, 10, 70, 12, 12)


def test_execution_that_nobody_has_measured_costs_nothing():
    cost = RequestCost()
    CostWatcher(lambda _: cost).add_execution(0, 1, execution(30))

    assert cost == RequestCost()


def test_tokens_are_costs_of_their_request():
    cost, usage = RequestCost(), TokenUsage("text")
    usage.prompt_tokens = 3
    CostWatcher(lambda _: cost).add_usage(0, usage)

    assert cost.tokens_in == 3


def test_members_of_a_chunk_have_their_own_costs():
    costs = [RequestCost(), None, RequestCost(), RequestCost()]
    watcher = CostWatcher(costs.__getitem__)
    watcher.add_execution(0, 3, execution(30, 100, 4))
    watcher.charged(2, 4, RequestCost(1, 7))

    assert [each and each.worker_ns for each in costs] == [100, None, 107, 7]
    assert [each and each.executions for each in costs] == [1, None, 2, 1]


def tensor(name, values, dtype=dtypes.INT32):
    if dtype is dtypes.BYTES:
        return InferTensor(name, dtype, (1,), dtypes.encode_bytes([values]))
    return InferTensor(name, dtype, (1,), np.array([values], np.int32).tobytes())


def test_tokens_are_those_that_the_model_has_counted():
    usage = TokenUsage("text")
    for number in (2, 3):
        outputs = [tensor("text", b"a", dtypes.BYTES), tensor("completion_tokens", number)]
        usage.read(InferResponse("m", "1", "", [*outputs, tensor("prompt_tokens", 7)]))
    usage.read(InferResponse("m", "1", "", [tensor("finish_reason", b"length", dtypes.BYTES)]))

    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 5)
    assert usage.finish_reason == "length"


@pytest.mark.parametrize("numbers, expected", [([9, 0, 0], 9), ([3, 9, 0], 9), ([0, 0, 0], 0)])
def test_tokens_of_the_prompt_are_the_last_number_that_was_set(numbers, expected):
    one_by_one, together = TokenUsage("text"), TokenUsage("text")
    for number in numbers:
        one_by_one.read(InferResponse("m", "1", "", [tensor("prompt_tokens", number)]))
    data = np.array(numbers, np.int32).tobytes()
    outputs = [OutputBurst("prompt_tokens", dtypes.INT32, (1,), data, [])]
    together.read_burst(ResponseBurst("m", "1", "", len(numbers), outputs))

    assert (one_by_one.prompt_tokens, together.prompt_tokens) == (expected, expected)


def test_responses_with_a_text_are_tokens_if_the_model_counts_none():
    usage = TokenUsage("text")
    usage.read(InferResponse("m", "1", "", [tensor("text", b"a", dtypes.BYTES)]))
    usage.read(InferResponse("m", "1", "", [tensor("other", b"a", dtypes.BYTES)]))

    assert usage.completion_tokens == 1


def test_burst_counts_as_its_responses_do():
    parts = [[tensor("text", b"a", dtypes.BYTES), tensor("num_output_tokens", 2)]] * 3
    one_by_one, together = TokenUsage("text"), TokenUsage("text")
    for outputs in parts:
        one_by_one.read(InferResponse("m", "1", "", [*outputs, tensor("prompt_tokens", 9)]))
    outputs = [
        OutputBurst(each.name, each.dtype, each.shape, bytes(each.data) * 3, [])
        for each in (*parts[0], tensor("prompt_tokens", 9))
    ]
    together.read_burst(ResponseBurst("m", "1", "", 3, outputs))

    for usage in (one_by_one, together):
        assert (usage.prompt_tokens, usage.completion_tokens) == (9, 6)
