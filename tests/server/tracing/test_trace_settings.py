# SPDX-License-Identifier: Apache-2.0
"""Settings of traces: what is read of the start, changed by clients, and told them."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.serving.server.tracing.settings import TraceSampling, TraceService, TraceSettings

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


def test_requests_that_are_not_traced_are_counted_alone():
    sampling = TraceSampling(3, -1)

    assert [sampling.passes_next() for _ in range(4)] == [True, True, False, False]
    assert sampling.takes_next()
    assert sampling.passes_next()


@pytest.mark.parametrize("rate, count", [(0, -1), (1, 0)])
def test_request_passes_where_none_is_traced(rate, count):
    assert TraceSampling(rate, count).passes_next()


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


def read_triton(*settings):
    return TraceSettings.read(["triton,file=trace.json", *settings])


def test_settings_of_files_are_told():
    settings = read_triton("level=TENSORS", "level=TIMESTAMPS", "rate=7", "triton,log-frequency=5")

    assert settings.view() == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["7"],
        "trace_count": ["-1"],
        "log_frequency": ["5"],
        "trace_file": ["trace.json"],
        "trace_mode": ["triton"],
    }
    sampling = settings.sampling("any")
    assert (sampling.rate, sampling.count, sampling.log_frequency) == (7, -1, 5)
    assert sampling.has_timestamps
    assert sampling.has_tensors


def test_without_a_level_nothing_is_traced_to_files():
    settings = read_triton()

    assert settings.view()["trace_level"] == ["OFF"]
    assert settings.sampling() is None


def test_level_without_a_file_traces_nothing():
    settings = TraceSettings.read(["level=TIMESTAMPS"])

    assert settings.sampling() is None
    assert settings.view() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }


def test_sampling_of_a_changed_setting_is_told_once():
    settings = read_triton("level=TIMESTAMPS")
    retired = []
    settings.on_retired = retired.append
    first = settings.sampling()
    settings.update({"trace_rate": ["2"]}, "m")
    assert retired == []

    of_model = settings.sampling("m")
    settings.update({"trace_level": ["OFF"]})
    assert retired == [first, of_model]
    settings.update({"trace_level": []})
    assert len(retired) == 2


def test_model_without_own_settings_is_counted_with_the_others_again():
    settings = read_triton("level=TIMESTAMPS")
    settings.update({"trace_rate": ["2"], "trace_count": ["9"]}, "m")
    settings.update({"trace_rate": [], "trace_count": []}, "m")

    assert settings.sampling("m") is settings.sampling()


def test_rate_zero_of_the_start_must_be_changed_with_the_level():
    settings = read_triton("rate=0")

    with pytest.raises(InvalidArgumentError, match="sample rate must be non-zero"):
        settings.update({"trace_level": ["TIMESTAMPS"]})
    settings.update({"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]})


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
            "Unable to parse 'trace_count'. Expecting value >= -1, got:-2",
        ),
        (
            {"trace_count": ["2147483648"]},
            (
                "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], "
                "got: 2147483648"
            ),
        ),
        (
            {"trace_rate": ["9" * 5000]},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: "
            + "9" * 5000,
        ),
        (
            {"trace_count": ["0"]},
            "Attempting to set invalid trace setting :trace count must be non-zero",
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


def test_level_cannot_be_raised_without_a_file():
    settings = TraceSettings.read([])
    settings.update({"trace_rate": ["3"]})

    with pytest.raises(InvalidArgumentError, match=":trace file name is not given"):
        settings.update({"trace_level": ["TIMESTAMPS"]})

    assert settings.view()["trace_rate"] == ["3"]


def test_numbers_may_have_signs_and_spaces():
    settings = read()
    settings.update({"trace_rate": [" +7 "], "trace_count": ["007"]})

    assert settings.view()["trace_rate"] == settings.view()["trace_count"] == ["7"]


def test_rates_are_told_for_front_ends():
    settings = read_triton("level=TIMESTAMPS", "rate=7")
    settings.update({"trace_rate": ["5"]}, "m")
    settings.update({"trace_level": ["OFF"]}, "n")

    assert settings.rates() == {"": 7, "m": 5, "n": -1}


class Engine:
    """One with front ends, which have to be waited for."""

    def __init__(self):
        self.log = []

    def find(self, name):
        return None

    def on_changed(self):
        self.log.append("changed")

    async def settled(self):
        self.log.append("settled")


def test_change_is_answered_after_front_ends_know_it():
    engine, settings = Engine(), read_triton()
    service = TraceService(engine, settings)
    assert service.change("", {}) == settings.view()
    assert engine.log == []

    answer = asyncio.run(service.change("", {"trace_rate": ["9"]}))
    assert engine.log == ["changed", "settled"]
    assert answer["trace_rate"] == ["9"]
