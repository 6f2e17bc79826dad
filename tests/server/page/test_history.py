# SPDX-License-Identifier: Apache-2.0
"""The samples of the last hour: what they say, how many are kept, and who takes them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from pytriton.serving.engine.latencies import REQUEST, Latencies, LatencyPlan
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.engine.stats import BatchRecord, FailureReason, ModelStatistics
from pytriton.serving.server.metrics.page import MetricsPage
from pytriton.serving.server.options.metrics_options import MetricsOptions
from pytriton.serving.server.page import history as module
from pytriton.serving.server.page.history import (
    COARSE,
    FINE,
    WHOLE_SERVER,
    History,
    Resolution,
    Sampler,
    quantile_ms,
)
from pytriton.testing import FakeClock
from pytriton.tools.commands.top.rows import rows_of
from pytriton.tools.commands.top.samples import read_metrics
from tests.fakes import model_spec

MS = 1_000_000
PLAN = LatencyPlan()
RATES = slice(0, 3)  # of a record: requests, failures and inferences a second
MEAN, P50, P95, P99, BATCH, PENDING, RUNNING = range(3, 10)


class ServedModel:
    """A model whose statistics a test fills."""

    def __init__(self, name="m", *, plan=PLAN, **settings):
        self.spec = model_spec(name=name, **settings)
        self.state = VersionState.READY
        self.instances = ()
        self.running_count = 0
        self.plan = plan
        self.load()

    def load(self):
        self.statistics = ModelStatistics(latencies=Latencies(self.plan, self.spec))

    def execute(self, requests, *, rows=1, failed=0, ms=4):
        """One execution; each of its requests has as many rows."""
        ns = ms * MS
        self.statistics.latencies.on_requests(requests, ns, 0)
        record = BatchRecord((requests + failed) * rows, 0, 0, ns, ns)
        record.succeeded, record.succeeded_rows = requests, requests * rows
        record.succeeded_ns = requests * ns
        self.statistics.record_batch(record, 1)
        if failed:
            self.statistics.record_failures(failed, ns, FailureReason.BACKEND)


class Samples:
    """A history whose time a test decides on."""

    def __init__(self, *models, **resolutions):
        self.models = list(models)
        self.history = History(0.0, **resolutions)
        self.now_s = 0.0
        self.refused = 0  # requests that reached no model

    def advance(self, seconds):
        """Let time pass, and take the samples that become due meanwhile."""
        end_s = self.now_s + seconds
        while self.history.due_s <= end_s:
            self.now_s = self.history.due_s
            sweep = self.history.begin(self.now_s, 1e9 + self.now_s)
            for model in self.models:
                sweep.add(model)
            sweep.finish(5 << 20, self.refused)
        self.now_s = end_s

    def after(self, number=0):
        return {name: json.loads(text) for name, text in self.history.after(number).items()}

    def records(self, track="fine", column=3):
        """The records of all samples by the number of a model."""
        samples = self.after()[track]
        return [{record[0]: record[1:] for record in sample[column]} for sample in samples]


def test_sample_has_rates_latencies_and_batch_size_of_the_time_since_the_last_one():
    model = ServedModel()
    samples = Samples(model)
    model.execute(6, rows=2, ms=4)
    samples.advance(2)
    model.execute(2)
    model.running_count, model.statistics.pending_count = 3, 7
    samples.advance(2)

    first, second = (record[1] for record in samples.records())
    assert first[RATES] == [3, 0, 6]
    assert (first[MEAN], first[BATCH], first[PENDING]) == (4, 12, 0)
    assert 2.5 < first[P50] < first[P95] < first[P99] <= 5
    assert second[RATES] == [1, 0, 1]
    assert (second[BATCH], second[PENDING], second[RUNNING]) == (2, 7, 3)


def test_requests_have_failures_in_them_and_batches_have_the_rows_of_all_executions():
    model = ServedModel()
    samples = Samples(model)
    model.execute(0, rows=4, failed=1)
    model.execute(1, rows=4)
    samples.advance(2)

    (record,) = (record[1] for record in samples.records())
    assert record[RATES] == [1, 0.5, 2]
    assert record[BATCH] == 4


def test_refused_requests_are_requests_and_errors_also_where_they_reached_no_model():
    model = ServedModel()
    samples = Samples(model)
    model.statistics.refused, samples.refused = 2, 4
    samples.advance(2)
    samples.refused = 6
    samples.advance(2)

    first, second = samples.records()
    assert first[1][RATES] == [1, 1, 0]
    assert first[WHOLE_SERVER][RATES] == [3, 3, 0]
    assert second.keys() == {WHOLE_SERVER}
    assert second[WHOLE_SERVER][RATES] == [1, 1, 0]


def test_page_and_top_say_the_same_of_the_same_time():
    model = ServedModel()
    model.execute(3, ms=2)
    samples = Samples(model)
    samples.advance(2)
    page = MetricsPage(MetricsOptions(latencies=PLAN, cpu=False))
    before = read_metrics(page.render([model]).decode(), 2.0)
    model.execute(5, rows=3, failed=2, ms=7)
    model.execute(0, rows=2, failed=1)
    model.execute(1, ms=80)
    model.statistics.record_failures(1, MS, FailureReason.REJECTED)
    model.statistics.record_failures(2, MS, FailureReason.CANCELED)
    samples.advance(2)
    after = read_metrics(page.render([model]).decode(), 4.0)

    (row,) = rows_of(before, after, {})
    record = samples.records()[-1][1]
    assert [row.requests_s, row.errors_s, row.inferences_s] == record[RATES] == [6, 2, 8]
    assert row.batch == pytest.approx(record[BATCH], rel=1e-4) == pytest.approx(8)
    assert row.average_ms == pytest.approx(record[MEAN], rel=1e-3)
    quantiles = [row.p50_ms, row.p95_ms, row.p99_ms]
    assert quantiles == pytest.approx(record[P50 : P99 + 1], rel=1e-3)


def test_model_that_did_nothing_has_no_record_but_is_known_since_its_first_sample():
    samples = Samples(ServedModel("a"))
    samples.advance(2)
    samples.models.append(ServedModel("b"))
    samples.advance(2)

    assert samples.records() == [{}, {}]
    models = samples.after()["models"]
    assert models == [[1, "", "a", "1", 1e9 + 2], [2, "", "b", "1", 1e9 + 4]]


def test_model_that_is_loaded_again_counts_from_zero():
    model = ServedModel()
    samples = Samples(model)
    model.execute(100)
    samples.advance(2)
    model.load()
    model.execute(2)
    samples.advance(2)

    assert [record[1][0] for record in samples.records()] == [50, 1]
    assert len(samples.after()["models"]) == 1


def test_whole_server_is_the_sum_without_the_latencies_of_streams():
    quick, stream = ServedModel("quick"), ServedModel("stream", decoupled=True)
    samples = Samples(quick, stream)
    quick.execute(99, ms=4)
    stream.execute(1, ms=60_000)
    stream.statistics.latencies.on_first_response(80 * MS)
    stream.statistics.latencies.on_next_responses(1, 20 * MS)
    samples.advance(2)

    (records,) = samples.records()
    whole = records[WHOLE_SERVER]
    assert whole[RATES] == [50, 0, 50]
    assert whole[MEAN] == 4
    assert whole[P99] < 5
    assert records[2][MEAN] == 60_000
    (streams,) = samples.records(column=4)
    assert streams[2] == streams[WHOLE_SERVER]
    first, between = streams[2][:3], streams[2][3:]
    assert 50 < first[0] <= first[2] <= 100
    assert 10 < between[0] <= between[2] <= 25
    assert 1 not in streams


def test_models_with_buckets_of_their_own_are_summed_up():
    usual = ServedModel("usual")
    own = ServedModel("own", histogram_buckets={REQUEST: (0.1, 0.2)})
    samples = Samples(usual, own)
    usual.execute(1, ms=4)
    own.execute(3, ms=150)
    samples.advance(2)

    (records,) = samples.records()
    assert records[WHOLE_SERVER][P99] == pytest.approx(198.67, rel=1e-3)


def test_models_without_histograms_have_means():
    model = ServedModel(plan=LatencyPlan(histograms=False))
    samples = Samples(model)
    model.execute(2, ms=4)
    samples.advance(2)

    ((record, _),) = (each.values() for each in samples.records())
    assert record[MEAN : P99 + 1] == [4, None, None, None]


def test_hour_is_kept_in_coarse_samples_and_minutes_in_fine_ones():
    samples = Samples(ServedModel())
    samples.advance(2 * 3600)

    kept = samples.after()
    times = {name: [sample[0] - 1e9 for sample in kept[name]] for name in ("fine", "coarse")}
    assert (times["fine"][0], times["fine"][-1], len(times["fine"])) == (6900, 7200, 151)
    assert (times["coarse"][0], times["coarse"][-1], len(times["coarse"])) == (3600, 7200, 361)
    assert {sample[1] for sample in kept["coarse"]} == {10.0}
    assert {sample[2] for sample in kept["fine"]} == {5 << 20}


def test_coarse_sample_counts_what_fine_ones_count():
    model = ServedModel()
    samples = Samples(model)
    for ms in (2, 4, 8, 16, 32):
        model.execute(20, ms=ms)
        samples.advance(2)

    ((coarse, _),) = (each.values() for each in samples.records("coarse"))
    assert [each[0] for each in [record[1] for record in samples.records()]] == [10] * 5
    assert coarse[RATES] == [10, 0, 10]
    # The median of all requests, which no mean of medians is.
    assert 5 < coarse[P50] <= 10


@pytest.mark.parametrize("count", [10, 300])
def test_memory_is_bounded_and_samples_of_many_models_are_further_apart(count):
    models = [ServedModel(f"model_{number}") for number in range(count)]
    fine, coarse = Resolution(2.0, 300.0, 100_000), Resolution(10.0, 3600.0, 200_000)
    samples = Samples(*models, fine=fine, coarse=coarse)
    for _ in range(300):
        for model in models:
            model.execute(2)
        samples.advance(24)

    texts = samples.history.after(0)
    assert len(texts["fine"]) < 100_000 + 1000
    assert len(texts["coarse"]) < 200_000 + 1000
    kept = json.loads(texts["coarse"])
    assert kept[-1][0] - kept[0][0] > 3000
    assert kept[-1][1] == (10.0 if count == 10 else pytest.approx(300, rel=0.5))


def test_new_samples_follow_those_that_a_page_has():
    model = ServedModel()
    samples = Samples(model)
    samples.advance(4)
    last = samples.history.last_number
    model.execute(1)
    samples.models.append(ServedModel("new"))
    samples.advance(2)

    new = samples.after(last)
    assert [sample[0] for sample in new["fine"]] == [1e9 + 6]
    assert [each[2] for each in new["models"]] == ["new"]
    assert samples.after(samples.history.last_number) == {"models": [], "fine": [], "coarse": []}
    assert len(samples.after(10_000)["fine"]) == 3  # the number of an earlier server


def test_page_that_asks_during_a_walk_misses_nothing():
    model = ServedModel()
    samples = Samples(model)
    samples.advance(2)
    sweep = samples.history.begin(4.0, 1e9 + 4)
    seen = samples.history.last_number
    sweep.add(model)
    sweep.finish(None)

    assert [sample[0] for sample in samples.after(seen)["fine"]] == [1e9 + 4]


def test_model_is_forgotten_when_no_sample_can_tell_of_it():
    samples = Samples(ServedModel("gone"))
    samples.advance(12)
    samples.models = [ServedModel("stays")]
    samples.advance(3000)
    assert [each[2] for each in samples.after()["models"]] == ["gone", "stays"]
    samples.advance(700)

    assert [each[2] for each in samples.after()["models"]] == ["stays"]


def test_quantile_is_linear_in_its_bucket_and_ends_at_the_last_bound():
    buckets = {(0.1, 0.05): 10, (float("inf"), 10.0): 1}

    assert quantile_ms(buckets, 0.5) == pytest.approx(77.5)
    assert quantile_ms(buckets, 0.99) == 10_000
    assert quantile_ms({}, 0.5) is None


def test_intervals_are_as_documented_for_a_hundred_and_a_thousand_busy_models():
    assert (FINE.interval_for(100 * 60), COARSE.interval_for(97 * 60)) == (2.0, 10.0)
    assert round(FINE.interval_for(1000 * 60)) == 17
    assert round(COARSE.interval_for(1000 * 60)) == 103


class TimerLoop:
    """The part of an event loop that a sampler uses."""

    def __init__(self):
        self.clock = FakeClock()

    def time(self):
        return self.clock()

    def call_later(self, delay_s, callback, *arguments):
        return self.clock.call_later(delay_s, callback, *arguments)


def test_sampler_reads_many_models_in_slices(monkeypatch):
    loop = TimerLoop()
    read = []
    models = [ServedModel(f"model_{number}") for number in range(70)]
    sampler = Sampler(lambda: iter(models), int, loop)
    monkeypatch.setattr(
        module.Sweep, "add", lambda _sweep, model: read.append((loop.time(), model))
    )
    begun = loop.time()
    sampler.start()
    loop.clock.advance(2.5)

    times = [at - begun for at, _ in read]
    assert [model for _, model in read] == models
    assert [times.count(at) for at in sorted(set(times))] == [32, 32, 6]
    assert sampler.history.last_number == 1
    loop.clock.advance(60)
    assert sampler.history.last_number > 20


def test_sampler_has_one_timer_until_it_is_stopped():
    clock = FakeClock()

    async def run():
        loop = asyncio.get_running_loop()
        sampler = Sampler(lambda: [ServedModel()], int, loop)
        sampler.start()
        await asyncio.sleep(7)
        sampler.stop()
        sampler.stop()
        taken = sampler.history.last_number
        await asyncio.sleep(7)
        return taken, sampler.history.last_number

    assert clock.run(run()) == (3, 3)


def test_sampler_that_fails_says_so_once(caplog):
    clock = FakeClock()

    async def run():
        broken = SimpleNamespace(state=VersionState.READY, instances=())
        sampler = Sampler(lambda: [broken], int, asyncio.get_running_loop())
        sampler.start()
        await asyncio.sleep(30)

    clock.run(run())

    assert [each.message for each in caplog.records if "sample" in each.message] == [
        "a sample could not be taken: charts of the page get no more points"
    ]


def test_models_that_are_not_served_are_left_out():
    loop = TimerLoop()
    served, failed = ServedModel("served"), ServedModel("failed")
    failed.state = VersionState.UNAVAILABLE
    sampler = Sampler(lambda: [served, failed], int, loop)
    sampler.start()
    loop.clock.advance(3)

    models = json.loads(sampler.history.after(0)["models"])
    assert [name for _, _, name, _, _ in models] == ["served"]


def test_memory_of_this_process_is_read_without_psutil():
    memory = module.resident_bytes()

    assert memory is None or 1 << 20 < memory < 1 << 40
