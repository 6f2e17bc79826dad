# SPDX-License-Identifier: Apache-2.0
"""The row of load generators: which there are, what counts, and how a client reports."""

from __future__ import annotations

from benchmarks import generator_client, generator_loads
from benchmarks.generator_loads import Turn


def test_best_turn_counts_for_rate_and_processor_time():
    rate, cpu = generator_loads.best("grpc", [Turn(10, 3), Turn(20, 5)])

    assert (rate.row, rate.value) == ("gRPC AddSub c=64", 20)
    assert cpu.row == "gRPC AddSub c=64, processor time of the generator"
    assert cpu.value == 3
    assert not cpu.higher_is_better


def test_perf_analyzer_is_measured_where_it_is(monkeypatch):
    monkeypatch.setattr(generator_loads.shutil, "which", lambda _name: None)
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    without = list(generator_loads.generators())
    monkeypatch.setenv("PERF_ANALYZER", "/somewhere/perf_analyzer")

    assert without == ["pytriton perf", *generator_loads.TABLE.peers[:3]]
    assert list(generator_loads.generators()) == [*without, "perf_analyzer"]


def test_figures_are_those_since_a_moment():
    begin = generator_client.Figures(10, 0.0, 0.0)
    figures = generator_client.since(begin, 25)

    assert figures.answered == 15
    assert figures.seconds > 0
    assert figures.cpu_s > 0
