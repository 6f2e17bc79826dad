# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re

import pytest
from triton_python_backend_utils import MetricFamily, TritonModelException

MESSAGE = ": Failed to process the request for model 'model_0_0', message: "
DELETED = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted."


def refused(text):
    return pytest.raises(TritonModelException, match=re.escape(text))


def family(kind=MetricFamily.COUNTER):
    return MetricFamily(name="requests", description="of all", kind=kind)


def test_family_is_made_by_the_server(runtime):
    made = family(MetricFamily.GAUGE)
    ((action, arguments),) = runtime.calls
    number = arguments.pop("family")

    assert action == "new_family"
    assert arguments == {"name": "requests", "description": "of all", "kind": "GAUGE"}
    assert number > 0
    assert repr(made) == "MetricFamily('requests', GAUGE)"


def test_metric_is_made_by_the_server(runtime):
    made = family()
    metric = made.Metric(labels={"a": "x"})
    (_, of_family), (action, arguments) = runtime.calls

    assert action == "new_metric"
    assert arguments["family"] == of_family["family"]
    assert arguments["metric"] != of_family["family"]
    assert arguments["labels"] == {"a": "x"}
    assert arguments["buckets"] is None
    del metric


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "b", None),
        ("a", "b", "COUNTER"),
        (None, "b", MetricFamily.COUNTER),
        ("a", None, MetricFamily.COUNTER),
    ],
)
def test_family_of_other_types_is_a_type_error(runtime, arguments):
    with pytest.raises(TypeError, match="must be"):
        MetricFamily(*arguments)


def test_refusal_of_the_server_has_tritons_words(runtime):
    runtime.refusal = "Family name already exists with different type"
    with refused(f"Error when creating MetricFamily{MESSAGE}{runtime.refusal}"):
        family()

    assert runtime.notes == []


LABELS = f"Error when creating Metric{MESSAGE}expected labels of str to str"


@pytest.mark.parametrize(
    "kind, arguments, text",
    [
        ("COUNTER", {"labels": [1]}, "Failed to create metric. Labels must be a dictionary."),
        ("COUNTER", {"labels": {"a": 2}}, LABELS),
        ("COUNTER", {"labels": {1: "x"}}, LABELS),
        ("COUNTER", {"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        ("HISTOGRAM", {}, "Failed to create metric. Missing required buckets."),
        ("HISTOGRAM", {"buckets": (1, 2)}, "Failed to create metric. Buckets must be a list."),
    ],
)
def test_wrong_labels_and_buckets_are_refused(runtime, kind, arguments, text):
    made = family(getattr(MetricFamily, kind))
    with refused(text):
        made.Metric(**arguments)


@pytest.mark.parametrize("buckets", [[], [1], [0.5, 2, 10]])
def test_histogram_has_its_buckets(runtime, buckets):
    made = family(MetricFamily.HISTOGRAM)
    metric = made.Metric(buckets=buckets)

    assert runtime.calls[-1][1]["buckets"] == buckets
    metric.observe(3)
    assert runtime.notes[-1][0] == "observe"


def test_counter_is_incremented(runtime):
    made = family()
    metric = made.Metric()
    number = runtime.calls[-1][1]["metric"]
    metric.increment(2)

    assert runtime.notes == [("increment", {"metric": number, "value": 2.0})]


def test_gauge_is_set_and_goes_both_ways(runtime):
    made = family(MetricFamily.GAUGE)
    metric = made.Metric()
    metric.set(5)
    metric.increment(-1.5)

    assert [(action, given["value"]) for action, given in runtime.notes] == [
        ("set", 5.0),
        ("increment", -1.5),
    ]


@pytest.mark.parametrize("kind", [MetricFamily.COUNTER, MetricFamily.GAUGE])
def test_value_is_the_servers(runtime, kind):
    runtime.answers["value"] = 7
    made = family(kind)

    assert made.Metric().value() == 7.0


@pytest.mark.parametrize("value", [-1, float("nan")])
def test_counter_does_not_fall(runtime, value):
    made = family()
    metric = made.Metric()
    with refused(
        f"Failed to increment metric value{MESSAGE}TRITONSERVER_METRIC_KIND_COUNTER can only be"
        " incremented monotonically by non-negative values."
    ):
        metric.increment(value)


@pytest.mark.parametrize(
    "kind, operation, text",
    [
        ("COUNTER", "set", "Failed to set metric value{}{}COUNTER does not support Set"),
        ("COUNTER", "observe", "Failed to observe metric value{}{}COUNTER does not support Obs"),
        ("GAUGE", "observe", "Failed to observe metric value{}{}GAUGE does not support Observe"),
        ("HISTOGRAM", "set", "Failed to set metric value{}{}HISTOGRAM does not support Set"),
        ("HISTOGRAM", "increment", "Failed to increment metric value{}{}HISTOGRAM does not"),
        ("HISTOGRAM", "value", "Failed to get metric value{}{}HISTOGRAM does not support Value"),
    ],
)
def test_operations_belong_to_kinds(runtime, kind, operation, text):
    made = family(getattr(MetricFamily, kind))
    metric = made.Metric(buckets=[1] if kind == "HISTOGRAM" else None)
    with refused(text.format(MESSAGE, "TRITONSERVER_METRIC_KIND_")):
        getattr(metric, operation)(*(() if operation == "value" else (1,)))

    assert runtime.notes == []


@pytest.mark.parametrize("value", [None, "1", b"1", [1]])
def test_value_that_is_no_number_is_a_type_error(runtime, value):
    made = family()
    metric = made.Metric()
    with pytest.raises(TypeError, match="must be a number"):
        metric.increment(value)


def test_metrics_of_a_deleted_family_are_dead(runtime):
    made = family(MetricFamily.GAUGE)
    metric = made.Metric()
    del made

    for operation, prefix in (("increment", "increment"), ("set", "set"), ("value", "get")):
        with refused(f"Failed to {prefix} metric value: {DELETED}"):
            getattr(metric, operation)(*(() if operation == "value" else (1,)))


def test_server_hears_of_what_is_deleted(runtime):
    made = family()
    metric = made.Metric()
    numbers = [arguments for _, arguments in runtime.calls]
    del metric
    del made

    assert runtime.notes == [
        ("delete_metric", {"metric": numbers[1]["metric"]}),
        ("delete_family", {"family": numbers[0]["family"]}),
    ]


def test_copies_in_a_forked_process_delete_nothing(runtime, monkeypatch):
    made = family()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    del made

    assert runtime.notes == []


def test_family_needs_a_server():
    with pytest.raises(TritonModelException, match="no server to keep metrics"):
        family()
