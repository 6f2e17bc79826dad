# SPDX-License-Identifier: Apache-2.0
"""What is read from h2load's output and from a server's metrics."""

from __future__ import annotations

import pytest

from benchmarks.grpc_loads import H2LoadReport, parse_report
from benchmarks.http_loads import cache_counts

H2LOAD = """
finished in 142.77ms, 420.25 req/s, 420.52MB/s
requests: 60 total, 60 started, 60 done, 57 succeeded, 1 failed, 2 errored, 0 timeout
status codes: 57 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 60.04MB (62955055) total, 1.17KB (1200) headers (space savings 47.37%), 60MB (62916720) data
                     min         max         mean         sd        +/- sd
time for request:     1.81ms      5.22ms      2.34ms       606us    88.33%
"""  # noqa: E501 - as h2load prints it

METRICS = """
# TYPE nv_cache_num_hits_per_model counter
nv_cache_num_hits_per_model{model="AddSub",version="1"} 9
nv_cache_num_hits_per_model{model="AddSubCached",version="1"} 2
nv_cache_num_misses_per_model{model="AddSubCached",version="1"} 31
"""


def test_h2load_report_is_read():
    assert parse_report(H2LOAD) == H2LoadReport(
        rate=420.25, mean_us=2340, succeeded=57, unsuccessful=3, data_bytes=62916720
    )


@pytest.mark.parametrize("text, mean_us", [("2.34us", 2.34), ("2.34ms", 2340), ("2s", 2e6)])
def test_h2load_times_have_a_unit(text, mean_us):
    assert parse_report(H2LOAD.replace("2.34ms", text)).mean_us == mean_us


def test_output_of_h2load_without_figures_is_shown():
    with pytest.raises(RuntimeError, match="no figures:\ncould not connect"):
        parse_report("could not connect")


def test_cache_counts_are_those_of_the_model():
    assert cache_counts(METRICS, "AddSubCached") == (2, 31)


def test_metrics_without_the_model_are_an_error():
    with pytest.raises(RuntimeError, match="count the cache hits of Other"):
        cache_counts(METRICS, "Other")
