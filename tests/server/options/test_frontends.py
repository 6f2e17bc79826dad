# SPDX-License-Identifier: Apache-2.0
"""How many processes serve HTTP and gRPC."""

from __future__ import annotations

import pytest

from pytriton.base.triton_config import TritonConfig
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.command.arguments import parse
from pytriton.serving.server.options.endpoints import (
    FRONTENDS_VARIABLE,
    Surroundings,
    frontend_process_count,
)
from pytriton.serving.server.options.server_options import ServerOptions


def processes(config, cores=16, environment=None):
    surroundings = Surroundings(cores=cores, frontend_processes=environment)
    return ServerOptions.from_triton_config(config, surroundings=surroundings).frontend_processes


@pytest.mark.parametrize(
    "cores, count",
    [(1, 0), (2, 0), (4, 0), (5, 2), (8, 2), (11, 2), (12, 3), (16, 4), (32, 8), (256, 8)],
)
def test_default_is_about_a_quarter_of_many_cores(cores, count):
    assert frontend_process_count(cores) == count
    assert processes({}, cores=cores) == count


@pytest.mark.parametrize("given, count", [(0, 0), ("3", 3), (64, 64)])
def test_given_number_counts_on_every_machine(given, count):
    config = {"frontend_processes": given, "http_thread_count": 5}

    assert processes(config, cores=2, environment="7") == count


def test_environment_counts_if_no_number_is_given():
    assert processes({}, environment="0") == 0
    assert processes({"http_thread_count": 5}, environment="7") == 7
    assert processes({}, environment="") == 4


@pytest.mark.parametrize(
    "threads, cores, count", [(3, 16, 3), ("12", 16, 8), (8, 2, 2), (0, 16, 0)]
)
def test_threads_for_triton_are_a_wish(threads, cores, count):
    assert processes({"http_thread_count": threads}, cores=cores) == count


def test_flag_and_field_have_the_same_name():
    assert processes(parse(["--frontend-processes=6"]).values) == 6
    assert processes(TritonConfig(frontend_processes=6).to_dict()) == 6


def test_field_comes_from_the_environment_as_all_fields_do(monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_FRONTEND_PROCESSES", "5")

    assert processes(TritonConfig.resolved(TritonConfig()).to_dict(), environment="7") == 5


@pytest.mark.parametrize(
    "config, environment, message",
    [
        (
            {"frontend_processes": 65},
            None,
            "Expected an integer from 0 to 64 for --frontend-processes, got 65",
        ),
        (
            {"frontend_processes": "many"},
            None,
            "Expected an integer from 0 to 64 for --frontend-processes, got 'many'",
        ),
        (
            {},
            "-1",
            f"Expected an integer from 0 to 64 for the variable {FRONTENDS_VARIABLE}, got '-1'",
        ),
        (
            {"http_thread_count": -2},
            None,
            f"Expected an integer from 0 to {2**63 - 1} for --http-thread-count, got -2",
        ),
    ],
)
def test_bad_number_is_refused(config, environment, message):
    with pytest.raises(PyTritonValidationError) as caught:
        processes(config, environment=environment)

    assert caught.value.message == message
