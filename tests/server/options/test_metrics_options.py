# SPDX-License-Identifier: Apache-2.0
"""The settings of `--metrics-config`."""

from __future__ import annotations

import logging

import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.engine.latencies import LatencyPlan, Quantile
from pytriton.serving.server.options.metrics_options import MetricsOptions
from pytriton.serving.server.options.server_options import ServerOptions


def metrics_of(*settings):
    return ServerOptions.from_triton_config({"metrics_config": list(settings)}).metrics_options


def test_metrics_settings_choose_what_is_recorded():
    plan = metrics_of(
        "latency_histograms=false",
        "latency_buckets=0.001,0.5",
        "batch_size_buckets=1,3",
        "histogram_latencies=true",
        "summary_latencies=true",
        "summary_quantiles=0.9:0.1,0.5:0.05",
    ).latencies

    assert plan == LatencyPlan(
        histograms=False,
        latency_buckets_s=(0.001, 0.5),
        batch_size_buckets=(1.0, 3.0),
        first_responses=True,
        quantiles=(Quantile(0.9, 0.1), Quantile(0.5, 0.05)),
    )


def test_summaries_have_tritons_quantiles_unless_told_otherwise():
    ranks = [each.rank for each in metrics_of("summary_latencies=1").latencies.quantiles]

    assert ranks == [0.5, 0.9, 0.95, 0.99, 0.999]
    assert metrics_of("summary_quantiles=0.5:0.1").latencies.quantiles == ()


@pytest.mark.parametrize(
    "text,ranks,problem",
    [
        ("0.5", [0.5, 0.9, 0.95, 0.99, 0.999], "[0.5]. No ':' delimiter found. Expected format"),
        ("0.5:0.05,,0.9:0.1", [0.5, 0.9], "[]. No ':' delimiter found. Expected format is"),
        ("0.25:0.05,0.5:x", [0.25], "[0.5:x]. Expected two numbers"),
        ("0.25:0.05,0.5:", [0.25], "[0.5:]. Expected two numbers"),
        ("0.25:0.05,1.5:0.1", [0.25], "[1.5:0.1]. Expected a quantile from 0 to 1"),
    ],
)
def test_wrong_quantiles_are_logged_and_left_out(caplog, text, ranks, problem):
    with caplog.at_level(logging.ERROR, "pytriton"):
        options = metrics_of("summary_latencies=true", f"summary_quantiles={text}")

    assert [each.rank for each in options.latencies.quantiles] == ranks
    (record,) = caplog.records
    assert f"Invalid option: {problem}" in record.getMessage()


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0.1:0.0.1", Quantile(0.1, 0.0)),
        ("0.5x: 1e-2%", Quantile(0.5, 0.01)),
        (" .5:5.", Quantile(0.5, 5.0)),
    ],
)
def test_quantile_is_read_up_to_the_end_of_its_numbers_as_in_triton(caplog, text, expected):
    with caplog.at_level(logging.WARNING, "pytriton"):
        options = metrics_of("summary_latencies=true", f"summary_quantiles={text}")

    assert options.latencies.quantiles == (expected,)
    warned = [record.getMessage() for record in caplog.records]
    assert all(f"[{text}] is read as {expected.rank:g}:{expected.error:g}" in it for it in warned)
    assert len(warned) == (text != " .5:5.")


def test_unknown_metrics_setting_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING, "pytriton"):
        assert metrics_of("foo=bar") == MetricsOptions()

    (record,) = caplog.records
    known = "counter_latencies, summary_latencies, "
    assert record.getMessage().startswith(f"--metrics-config foo has no effect; known are {known}")


@pytest.mark.parametrize(
    "setting,problem",
    [
        # Triton's words.
        ("x=", "--metrics-config option format is <setting>=<value>. Got x="),
        ("local,size=3", "--metrics-config option format is <setting>=<value>. Got local,size=3"),
        ("latency_buckets=1,x", "got '1,x'"),
        ("latency_buckets=2,1", "got '2,1'"),
        ("latency_buckets=0,1", "got '0,1'"),
        ("batch_size_buckets=1,inf", "got '1,inf'"),
    ],
)
def test_wrong_setting_is_refused(setting, problem):
    with pytest.raises(PyTritonValidationError, match="--metrics-config") as caught:
        metrics_of(setting)

    assert problem in caught.value.message
