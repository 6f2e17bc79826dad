# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.utils.trace_config import TraceConfig, read_trace_config


def test_settings_are_read():
    config = read_trace_config(
        [
            "mode=opentelemetry",
            "level=timestamps",
            "level=TENSORS",
            "rate=5",
            "count=7",
            "opentelemetry,url=http://host/?a=b",
            "opentelemetry,resource=service.name=mine,region=eu",
            "opentelemetry,resource=region=us",
            "opentelemetry,bsp_max_queue_size=9",
            "triton,file=trace.json",
            "triton,log-frequency=3",
        ]
    )

    assert config == TraceConfig(
        mode="opentelemetry",
        levels=("TIMESTAMPS", "TENSORS"),
        rate=5,
        count=7,
        options={"url": "http://host/?a=b", "bsp_max_queue_size": "9"},
        resource={"service.name": "mine", "region": "us"},
        file="trace.json",
        log_frequency=3,
    )
    assert config.url == "http://host/?a=b"
    assert config.batching == {
        "max_queue_size": 9,
        "schedule_delay_millis": 5000,
        "max_export_batch_size": 9,
    }


def test_settings_have_tritons_defaults():
    config = read_trace_config([])

    assert (config.rate, config.count, config.url) == (1000, -1, "")
    assert not config.is_opentelemetry
    assert config.batching == {
        "max_queue_size": 2048,
        "schedule_delay_millis": 5000,
        "max_export_batch_size": 512,
    }


@pytest.mark.parametrize(
    "settings, makes_traces",
    [
        ([], False),
        (["level=TIMESTAMPS"], False),
        (["triton,file=trace.json"], True),
        (["mode=opentelemetry"], True),
    ],
)
def test_traces_need_a_place(settings, makes_traces):
    assert read_trace_config(settings).makes_traces is makes_traces


@pytest.mark.parametrize("name", ["rate", "count", "triton,log-frequency"])
def test_setting_that_is_no_number_is_refused(name):
    with pytest.raises(ValueError, match=f"'{name.removeprefix('triton,')}', got 'often'"):
        read_trace_config([f"{name}=often"])


@pytest.mark.parametrize("setting", ["rate=-1", "count=-2", "triton,log-frequency=-1"])
def test_setting_that_is_too_small_is_refused(setting):
    with pytest.raises(ValueError, match=r"Expected a number from (0|-1) on as trace setting"):
        read_trace_config([setting])


def test_option_that_is_no_number_is_refused():
    config = read_trace_config(["opentelemetry,bsp_schedule_delay=soon"])

    with pytest.raises(ValueError, match="'bsp_schedule_delay', got 'soon'"):
        config.batching  # noqa: B018  it is what raises


@pytest.mark.parametrize(
    "text, level",
    [("off", "OFF"), ("False", "OFF"), ("on", "TIMESTAMPS"), ("MIN", "TIMESTAMPS")],
)
def test_level_has_the_names_that_triton_takes(text, level):
    assert read_trace_config([f"level={text}"]).levels == (level,)


def test_level_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"TIMESTAMPS or TENSORS .* got 'TIMESTAMP'"):
        read_trace_config(["level=TIMESTAMP"])


def test_mode_is_known_in_any_case():
    assert read_trace_config(["mode=OpenTelemetry"]).is_opentelemetry


def test_mode_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"triton or opentelemetry .* got 'otel'"):
        read_trace_config(["mode=otel"])
