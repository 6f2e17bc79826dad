# SPDX-License-Identifier: Apache-2.0
"""Settings of traces: what is read of the start, changed by clients, and told them."""

from __future__ import annotations

import pytest

from pytriton.errors import InvalidArgumentError, UnsupportedError
from pytriton.server.tracing.settings import TraceSampling, TraceSettings

OTLP = ["mode=opentelemetry", "opentelemetry,url=http://host/v1/traces"]


def read(*settings):
    return TraceSettings.read([*OTLP, *settings])


def test_every_nth_request_is_sampled():
    sampling = TraceSampling(3, -1)

    assert [sampling.takes_next() for _ in range(6)] == [False, False, True] * 2


def test_rate_zero_samples_nothing():
    sampling = TraceSampling(0, -1)

    assert not any(sampling.takes_next() for _ in range(3))


def test_count_limits_what_is_sampled():
    sampling = TraceSampling(1, 2)

    assert [sampling.takes_next() for _ in range(4)] == [True, True, False, False]


def test_rate_that_is_no_number_is_refused():
    with pytest.raises(InvalidArgumentError, match="'rate', got 'often'"):
        read("rate=often")


def test_settings_of_opentelemetry_are_told():
    settings = read("rate=5", "opentelemetry,resource=a=b", "opentelemetry,resource=c=d")

    assert settings.view() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["5"],
        "trace_count": ["-1"],
        "trace_mode": ["opentelemetry"],
        "url": ["http://host/v1/traces"],
        "resource": ["a=b,c=d"],
        "bsp_max_queue_size": ["2048"],
        "bsp_schedule_delay": ["5000"],
        "bsp_max_export_batch_size": ["512"],
    }


def test_server_that_does_not_trace_says_so():
    settings = TraceSettings.read(["triton,file=trace.json", "level=TIMESTAMPS"])

    assert settings.sampling() is None
    assert settings.view() == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }


def test_change_counts_at_once():
    settings = read("rate=1000")
    settings.update({"trace_rate": ["1"], "trace_count": ["1"]})

    sampling = settings.sampling("any")
    assert [sampling.takes_next() for _ in range(2)] == [True, False]
    assert settings.view()["trace_count"] == ["0"]


def test_level_turns_tracing_off_and_on():
    settings = read("level=OFF")
    assert settings.sampling() is None

    settings.update({"trace_level": ["TIMESTAMPS", "TENSORS"]})
    assert settings.sampling() is not None

    settings.update({"trace_level": []})
    assert settings.sampling() is None


def test_model_inherits_what_it_has_not_of_its_own():
    settings = read("rate=1")
    settings.update({"trace_rate": ["5"]}, "m")
    settings.update({"trace_rate": ["7"], "trace_count": ["9"]})

    assert (settings.view("m")["trace_rate"], settings.view("m")["trace_count"]) == (["5"], ["9"])
    assert settings.view("other") == settings.view()

    settings.update({"trace_rate": []}, "m")
    assert settings.view("m")["trace_rate"] == ["7"]
    settings.update({"trace_rate": []})
    assert settings.view("m")["trace_rate"] == settings.view()["trace_rate"] == ["1"]


def test_change_for_a_model_leaves_the_count_of_the_others():
    settings = read("rate=1", "count=2")
    settings.sampling("other").takes_next()
    settings.update({"trace_rate": ["3"]}, "m")

    assert settings.view()["trace_count"] == ["1"]
    assert settings.view("m")["trace_count"] == ["2"]


@pytest.mark.parametrize(
    "change, text",
    [
        ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": ["2.5"]}, "Unable to parse 'trace_rate', got: 2.5"),
        (
            {"trace_rate": ["-1"]},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1",
        ),
        (
            {"trace_count": ["-2"]},
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -2",
        ),
        ({"log_frequency": ["often"]}, "Unable to parse 'log_frequency', got: often"),
        ({"trace_rate": ["1", "2"]}, "expect only 1 value for 'trace_rate'"),
        (
            {"trace_rate": ["0"]},
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
        (
            {"trace_level": ["OFF", "TIMESTAMPS"]},
            "Expect only one trace level 'OFF' is specified",
        ),
        (
            {"trace_level": ["ALL"]},
            "Expected trace levels out of OFF, TIMESTAMPS, TENSORS, got: ALL",
        ),
    ],
)
def test_wrong_value_changes_nothing(change, text):
    settings = read()
    before = settings.view()

    with pytest.raises(InvalidArgumentError) as refusal:
        settings.update({"trace_count": ["5"], **change})

    assert refusal.value.message == text
    assert settings.view() == before


def test_file_of_traces_cannot_be_changed():
    with pytest.raises(UnsupportedError, match="trace file location can not be updated"):
        read().update({"trace_file": ["/etc/passwd"]})


def test_settings_that_nobody_can_change_are_passed_over():
    settings = read()
    before = settings.view()
    settings.update({"trace_mode": ["triton"], "url": ["elsewhere"], "unknown": ["x"]})

    assert settings.view() == before


def test_rate_zero_of_the_start_allows_other_changes():
    settings = read("rate=0")
    settings.update({"trace_count": ["3"]})

    assert settings.view()["trace_rate"] == ["0"]


def test_level_cannot_be_raised_where_nothing_traces():
    settings = TraceSettings.read([])
    settings.update({"trace_rate": ["3"]})

    with pytest.raises(InvalidArgumentError, match="makes traces in mode opentelemetry only"):
        settings.update({"trace_level": ["TIMESTAMPS"]})

    assert settings.view()["trace_rate"] == ["3"]
