# SPDX-License-Identifier: Apache-2.0
"""Metrics of a model's own. The families stay, so that /metrics shows them afterwards."""

import triton_python_backend_utils as pb_utils

kept = []  # a metric lives as long as somebody holds it


def family(name, kind, description="described"):
    made = pb_utils.MetricFamily(name=name, description=description, kind=kind)
    kept.append(made)
    return made


def families(_request):
    family("pbd_counter", pb_utils.MetricFamily.COUNTER)
    return {
        "same again": lambda: family("pbd_counter", pb_utils.MetricFamily.COUNTER, "other words"),
        "same of another kind": lambda: family("pbd_counter", pb_utils.MetricFamily.GAUGE),
        "kind None": lambda: pb_utils.MetricFamily("pbd_x", "d", None),
        "kind a number": lambda: pb_utils.MetricFamily("pbd_x", "d", 1),
        "name None": lambda: pb_utils.MetricFamily(None, "d", pb_utils.MetricFamily.GAUGE),
        "description None": lambda: pb_utils.MetricFamily(
            "pbd_x", None, pb_utils.MetricFamily.GAUGE
        ),
        "no arguments": pb_utils.MetricFamily,
        "name with a space": lambda: pb_utils.MetricFamily(
            "pbd x", "d", pb_utils.MetricFamily.GAUGE
        ),
        "empty name": lambda: pb_utils.MetricFamily("", "d", pb_utils.MetricFamily.GAUGE),
        "kinds": lambda: [
            pb_utils.MetricFamily.COUNTER.name,
            pb_utils.MetricFamily.GAUGE.name,
            pb_utils.MetricFamily.HISTOGRAM.name,
        ],
    }


def counters(_request):
    counter = family("pbd_counted", pb_utils.MetricFamily.COUNTER)
    one = counter.Metric(labels={"b": "2", "a": "1"})
    same = counter.Metric(labels={"a": "1", "b": "2"})
    plain = counter.Metric()
    kept.extend([one, same, plain])
    return {
        "starts at": one.value,
        "increment": lambda: [one.increment(2.5), one.value()],
        "same labels share": same.value,
        "other labels do not": plain.value,
        "increment by nothing": lambda: [one.increment(0), one.value()],
        "increment by less": lambda: one.increment(-1),
        "increment by text": lambda: one.increment("1"),
        "increment by None": lambda: one.increment(None),
        "set": lambda: one.set(1),
        "observe": lambda: one.observe(1),
        "labels None": lambda: counter.Metric(labels=None).value(),
        "labels a list": lambda: counter.Metric(labels=["a"]),
        "labels of numbers": lambda: counter.Metric(labels={"a": 1}),
        "labels with a number for a key": lambda: counter.Metric(labels={1: "a"}),
        "buckets": lambda: counter.Metric(buckets=[1.0]),
        "value": one.value,
    }


def gauges(_request):
    gauge = family("pbd_gauge", pb_utils.MetricFamily.GAUGE, 'with "quotes" \\ and é')
    one = gauge.Metric(labels={"path": 'a"b\\c'})
    kept.append(one)
    return {
        "set": lambda: [one.set(-7.25), one.value()],
        "increment": lambda: [one.increment(10), one.value()],
        "decrement": lambda: [one.increment(-2), one.value()],
        "set to text": lambda: one.set("a"),
        "observe": lambda: one.observe(1),
        "buckets": lambda: gauge.Metric(buckets=[1.0]),
    }


def histograms(_request):
    histogram = family("pbd_histogram", pb_utils.MetricFamily.HISTOGRAM)
    one = histogram.Metric(labels={"a": "1"}, buckets=[0.1, 1.0, 10])
    empty = histogram.Metric(labels={"a": "2"}, buckets=[])
    kept.extend([one, empty])
    return {
        "observe": lambda: [one.observe(value) for value in (0.05, 0.1, 5, 100)],
        "observe without buckets": lambda: empty.observe(3),
        "value": one.value,
        "increment": lambda: one.increment(1),
        "set": lambda: one.set(1),
        "no buckets": lambda: histogram.Metric(labels={"a": "3"}),
        "buckets a tuple": lambda: histogram.Metric(buckets=(1.0,)),
        "buckets unsorted": lambda: histogram.Metric(labels={"a": "4"}, buckets=[2.0, 1.0]),
        "buckets twice": lambda: histogram.Metric(labels={"a": "5"}, buckets=[1.0, 1.0]),
        "buckets of text": lambda: histogram.Metric(labels={"a": "6"}, buckets=["a"]),
    }


def deleted_family():
    made = pb_utils.MetricFamily("pbd_deleted", "d", pb_utils.MetricFamily.GAUGE)
    return made.Metric(labels={"a": "1"})


def deletion(_request):
    orphan = deleted_family()
    return {
        "metric of a family that is gone: value": orphan.value,
        "metric of a family that is gone: set": lambda: orphan.set(1),
        "metric of a family that is gone: increment": lambda: orphan.increment(1),
        "metric of a family that is gone: observe": lambda: orphan.observe(1),
        "metric cannot be made alone": lambda: (
            type(__import__("c_python_backend_utils").Metric()).__name__
        ),
        "family of a name that was deleted": lambda: pb_utils.MetricFamily(
            "pbd_deleted", "d", pb_utils.MetricFamily.COUNTER
        ),
    }


GROUPS = {
    "metric families": families,
    "metric counters": counters,
    "metric gauges": gauges,
    "metric histograms": histograms,
    "metric deletion": deletion,
    "metric gone": lambda _request: {"kept": kept.clear},
}
