# SPDX-License-Identifier: Apache-2.0
"""Metrics of models: sharing, numbers, what is refused, and when they go."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytriton.base.errors import ServerError
from pytriton.serving.repository.services import custom_metrics
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics


@pytest.fixture
def shared():
    return CustomMetrics(reserved=lambda: {"nv_inference_count"})


@pytest.fixture
def worker(shared):
    return WorkerMetrics(shared)


def lines(shared: CustomMetrics) -> dict[str, float]:
    """What the page would show: a number for each name with its labels."""
    return {
        f"{family.name}{suffix}" + str(sorted(labels.items()) or ""): value
        for family in shared.families()
        for suffix, labels, value in family.readings()
    }


def single(worker: WorkerMetrics, kind: str, buckets: list[float] | None = None) -> int:
    """A metric of a family of its own; its number is always 1."""
    worker.new_family(1, "f", "text", kind)
    worker.new_metric(1, 1, {}, buckets)
    return 1


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ServerError) as caught:
        call(*arguments)
    return caught.value.message


def test_counter_counts(worker, shared):
    metric = single(worker, "COUNTER")
    worker.increment(metric, 1.5)
    worker.increment(metric, 2)

    assert worker.value(metric) == 3.5
    assert lines(shared) == {"f": 3.5}


def test_gauge_goes_up_and_down(worker):
    metric = single(worker, "GAUGE")
    worker.set(metric, 4)
    worker.increment(metric, -6)

    assert worker.value(metric) == -2


def test_histogram_counts_what_is_below_each_bound(worker, shared):
    metric = single(worker, "HISTOGRAM", [0.1, 1.0, 10.0])
    for value in (0.05, 0.1, 1, 5, 50, -1):
        worker.observe(metric, value)

    assert lines(shared) == {
        "f_count": 6,
        "f_sum": pytest.approx(55.15),
        "f_bucket[('le', '0.1')]": 3,
        "f_bucket[('le', '1')]": 4,
        "f_bucket[('le', '10')]": 5,
        "f_bucket[('le', '+Inf')]": 6,
    }


def test_histogram_may_have_no_bound_but_infinity(worker, shared):
    metric = single(worker, "HISTOGRAM", [])
    worker.new_metric(1, 2, {"a": "b"}, [math.inf])
    worker.observe(metric, math.nan)

    assert lines(shared)["f_bucket[('le', '+Inf')]"] == 1
    assert [each for each in lines(shared) if "'a'" in each and "bucket" in each] == [
        "f_bucket[('a', 'b'), ('le', '+Inf')]"
    ]


@pytest.mark.parametrize(
    "kind,operation,text",
    [
        ("COUNTER", "set", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        ("COUNTER", "observe", "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
        ("GAUGE", "observe", "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
        ("HISTOGRAM", "increment", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
        ("HISTOGRAM", "set", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
    ],
)
def test_operation_that_a_kind_has_not_is_refused(worker, kind, operation, text):
    metric = single(worker, kind, [])

    assert refusal(getattr(worker, operation), metric, 1.0) == text


def test_histogram_has_no_value(worker):
    metric = single(worker, "HISTOGRAM", [])

    assert refusal(worker.value, metric) == (
        "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"
    )


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_counter_never_goes_down(worker, value):
    metric = single(worker, "COUNTER")

    assert refusal(worker.increment, metric, value) == (
        "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by "
        "non-negative values."
    )
    assert worker.value(metric) == 0


def test_family_of_a_name_has_one_kind(worker, shared):
    worker.new_family(1, "f", "first", "COUNTER")
    other = WorkerMetrics(shared)

    assert refusal(other.new_family, 1, "f", "second", "GAUGE") == (
        "Family name already exists with different type"
    )


@pytest.mark.parametrize("name", ["", "a b", "1a", "ä", "a\n"])
def test_name_that_prometheus_cannot_read_is_refused(worker, name):
    assert refusal(worker.new_family, 1, name, "", "GAUGE") == "Invalid metric name"


def test_name_of_the_servers_own_is_refused(worker):
    assert refusal(worker.new_family, 1, "nv_inference_count", "", "COUNTER") == (
        "Family name 'nv_inference_count' is one of the server's own"
    )


@pytest.mark.parametrize("label", ["", "a b", "__a", "a:b", "le"])
def test_label_that_prometheus_cannot_read_is_refused(worker, label):
    worker.new_family(1, "vllm:f", "", "HISTOGRAM")

    assert refusal(worker.new_metric, 1, 1, {label: "x"}, []) == "Invalid label name"


@pytest.mark.parametrize("buckets", [[2.0, 1.0], [1.0, 1.0], [math.nan], [-math.inf, 1.0]])
def test_bounds_must_rise(worker, buckets):
    worker.new_family(1, "f", "", "HISTOGRAM")

    assert refusal(worker.new_metric, 1, 1, {}, buckets) == (
        "Bucket Boundaries must be strictly sorted"
    )


def test_workers_share_what_has_the_same_name_and_labels(worker, shared):
    other = WorkerMetrics(shared)
    for number, each in enumerate((worker, other)):
        each.new_family(1, "f", f"text {number}", "COUNTER")
    worker.new_metric(1, 1, {"b": "2", "a": "1"}, None)
    other.new_metric(1, 7, {"a": "1", "b": "2"}, None)
    worker.increment(1, 1)
    other.increment(7, 2)

    assert worker.value(1) == other.value(7) == 3
    assert lines(shared) == {"f[('a', '1'), ('b', '2')]": 3}
    assert [family.description for family in shared.families()] == ["text 0"]


def test_line_stays_until_the_last_metric_is_deleted(worker, shared):
    worker.new_family(1, "f", "", "GAUGE")
    worker.new_family(2, "f", "", "GAUGE")
    worker.new_metric(1, 1, {}, None)
    worker.new_metric(1, 2, {}, None)
    worker.new_metric(2, 3, {}, None)
    for number in (1, 3):
        worker.delete_metric(number)
        assert lines(shared) == {"f": 0}

    worker.delete_metric(2)

    assert lines(shared) == {}
    assert len(shared) == 1


def test_deleted_family_takes_its_own_metrics_along(worker, shared):
    worker.new_family(1, "f", "", "GAUGE")
    worker.new_family(2, "f", "", "GAUGE")
    worker.new_metric(1, 1, {"of": "1"}, None)
    worker.new_metric(2, 2, {"of": "2"}, None)
    worker.delete_family(1)
    worker.delete_metric(1)
    worker.delete_family(1)

    assert lines(shared) == {"f[('of', '2')]": 0}
    assert refusal(worker.set, 1, 1.0) == "the metric has been deleted"
    assert refusal(worker.new_metric, 1, 3, {}, None) == "the metric's family has been deleted"


def test_name_is_free_again_when_nobody_has_it(worker, shared):
    single(worker, "COUNTER")
    worker.delete_family(1)
    worker.new_family(2, "f", "", "HISTOGRAM")

    assert [family.kind for family in shared.families()] == ["HISTOGRAM"]


def test_worker_that_is_gone_releases_everything(worker, shared):
    other = WorkerMetrics(shared)
    for each in (worker, other):
        each.new_family(1, "f", "", "COUNTER")
        each.new_metric(1, 1, {}, None)
        each.increment(1, 1)
    worker.new_metric(1, 2, {"only": "here"}, None)
    worker.close()
    worker.close()
    assert lines(shared) == {"f": 2}

    other.close()

    assert len(shared) == 0


@pytest.mark.parametrize("kind", ["FOO", "GAUGE\nforged 1", ""])
def test_kind_that_there_is_not_is_refused(worker, shared, kind):
    assert refusal(worker.new_family, 1, "f", "", kind).startswith("expected a kind of COUNTER")
    assert len(shared) == 0


def test_numbers_are_given_once(worker, shared):
    metric = single(worker, "GAUGE")
    assert "a family with a new number" in refusal(worker.new_family, 1, "g", "", "GAUGE")
    assert "a metric with a new number" in refusal(worker.new_metric, 1, metric, {"a": "b"}, None)
    worker.close()

    assert len(shared) == 0


def test_families_and_metrics_of_a_worker_are_limited(worker, shared, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MAX_FAMILIES", 2)
    monkeypatch.setattr(custom_metrics, "MAX_SERIES", 10)
    worker.new_family(1, "f", "", "HISTOGRAM")
    worker.new_family(2, "g", "", "GAUGE")
    assert "at most 2 families" in refusal(worker.new_family, 3, "h", "", "GAUGE")
    worker.new_metric(1, 1, {}, [1.0, 2.0, 3.0])  # six lines on the page
    assert "at most 10 metrics" in refusal(worker.new_metric, 1, 2, {"a": "b"}, [1.0, 2.0])
    for number in range(3, 7):
        worker.new_metric(2, number, {"a": str(number)}, None)
    assert "at most 10 metrics" in refusal(worker.new_metric, 2, 7, {"a": "7"}, None)
    worker.delete_metric(1)
    worker.new_metric(2, 7, {"a": "7"}, None)
    worker.delete_family(2)
    WorkerMetrics(shared).new_family(1, "g", "", "GAUGE")

    assert {family.name for family in shared.families()} == {"f", "g"}


def test_texts_of_metrics_are_limited(worker, shared):
    assert "at most 10000 characters" in refusal(worker.new_family, 1, "f", "x" * 10_001, "GAUGE")
    worker.new_family(1, "f", "", "GAUGE")
    assert "10000 characters each" in refusal(worker.new_metric, 1, 1, {"a": "x" * 10_001}, None)

    assert lines(shared) == {}


def test_texts_of_all_metrics_are_limited_as_often_as_the_page_has_them(
    worker, shared, monkeypatch
):
    monkeypatch.setattr(custom_metrics, "MAX_CHARACTERS", 100)
    worker.new_family(1, "f", "ten letters", "HISTOGRAM")
    other = WorkerMetrics(shared)
    other.new_family(1, "f", "", "HISTOGRAM")  # it has the description of the first
    assert "at most 100 characters" in refusal(
        worker.new_metric, 1, 1, {"a": "x" * 10}, [1.0, 2.0, 3.0, 4.0, 5.0]
    )
    worker.new_metric(1, 1, {"a": "x" * 10}, [1.0, 2.0])  # five lines of twelve characters
    assert "at most 100 characters" in refusal(worker.new_metric, 1, 2, {"a": "y" * 10}, [])
    assert "at most 100 characters" in refusal(worker.new_family, 2, "g", "x" * 30, "GAUGE")
    worker.delete_metric(1)
    worker.new_metric(1, 2, {"a": "y" * 10}, [])
    for each in (worker, other):
        each.close()
        each.new_family(2, "g", "x" * 98, "GAUGE")

    assert len(shared) == 1


@pytest.mark.parametrize(
    "first,second",
    [
        (("f", "HISTOGRAM"), ("f_count", "COUNTER")),
        (("f_sum", "GAUGE"), ("f", "HISTOGRAM")),
        (("f_bucket", "HISTOGRAM"), ("f", "HISTOGRAM")),
        (("f_total", "COUNTER"), ("f", "GAUGE")),
        (("f", "COUNTER"), ("f_total", "COUNTER")),
    ],
)
def test_families_whose_lines_would_be_mixed_up_are_refused(worker, shared, first, second):
    worker.new_family(1, first[0], "", first[1])
    assert "cannot be beside" in refusal(worker.new_family, 2, second[0], "", second[1])
    worker.delete_family(1)
    worker.new_family(2, second[0], "", second[1])

    assert [family.name for family in shared.families()] == [second[0]]


@pytest.mark.parametrize("kind", ["COUNTER", "GAUGE", "HISTOGRAM"])
@pytest.mark.parametrize("name", ["nv_inference_count_sum", "nv_inference_count_bucket"])
def test_lines_of_the_servers_own_families_are_refused(worker, name, kind):
    assert "one of the server's own" in refusal(worker.new_family, 1, name, "", kind)


def test_histogram_whose_lines_are_the_servers_own_is_refused(worker):
    assert "the server's own" in refusal(worker.new_family, 1, "nv_inference", "", "HISTOGRAM")
    worker.new_family(1, "nv_inference", "", "GAUGE")
