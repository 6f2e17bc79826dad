# SPDX-License-Identifier: Apache-2.0
"""The tables that `tritonserver` logs at its start."""

from __future__ import annotations

import json

import pytest

from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.server.command.lifecycle import LoadedBackend
from pytriton.serving.server.command.startup import (
    agent_table,
    backend_table,
    draw_table,
    model_table,
    option_table,
)
from pytriton.serving.server.options.server_options import ServerOptions

options_from = ServerOptions.from_triton_config


def cells(table):
    """The texts of a table's rows, without the headings."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines][1:]


def test_table_without_rows_has_borders():
    assert agent_table({}) == (
        "+------------------+------+\n"
        "| Repository Agent | Path |\n"
        "+------------------+------+\n"
        "+------------------+------+\n"
    )


def test_models_are_listed_with_their_state():
    table = model_table(
        [
            IndexEntry("addsub", "1", "READY"),
            IndexEntry("bad", "12", "UNAVAILABLE", "Internal: ValueError: no\n\n  here"),
            IndexEntry("none"),
        ]
    )

    assert table == (
        "+--------+---------+----------------------------------------+\n"
        "| Model  | Version | Status                                 |\n"
        "+--------+---------+----------------------------------------+\n"
        "| addsub | 1       | READY                                  |\n"
        "| bad    | 12      | UNAVAILABLE: Internal: ValueError: no  |\n"
        "|        |         |                                        |\n"
        "|        |         |   here                                 |\n"
        "| none   | -       | Not loaded: No model version was found |\n"
        "+--------+---------+----------------------------------------+\n"
    )


def test_backend_shows_what_the_command_line_says():
    options = options_from({"backend_config": ["python,thread-pool-size=5"]})
    ((name, path, config),) = cells(
        backend_table([LoadedBackend("python", "/lib/python")], options)
    )

    assert (name, path) == ("python", "/lib/python")
    assert config.startswith('{"cmdline":{"auto-complete-config":"true",')
    assert json.loads(config)["cmdline"] == options.repository.backend_settings("python")


def test_options_are_listed_as_triton_does():
    options = options_from(
        {
            "id": "me",
            "model_repository": ["/a", "/b"],
            "model_control_mode": "explicit",
            "load_model": ["m", "n"],
            "disable_auto_complete_config": True,
            "model_config_name": "h100",
            "rate_limit": "execution_count",
            "rate_limit_resource": ["R:4", "S:3:1"],
            "strict_readiness": False,
            "exit_timeout_secs": 5,
            "cache_config": "local,size=100",
        }
    )
    rows = dict(cells(option_table(options)))
    extensions = rows.pop("server_extensions").split()

    assert "binary_tensor_data" in extensions
    assert rows.pop("server_version").startswith("2.")
    assert rows == {
        "server_id": "me",
        "model_repository_path[0]": "/a",
        "model_repository_path[1]": "/b",
        "model_control_mode": "MODE_EXPLICIT",
        "startup_models_0": "m",
        "startup_models_1": "n",
        "strict_model_config": "1",
        "model_config_name": "h100",
        "rate_limit": "EXEC_COUNT",
        "rate_limit_resource[0]": '{"name":"R","count":4,"device":-1}',
        "rate_limit_resource[1]": '{"name":"S","count":3,"device":1}',
        "pinned_memory_pool_byte_size": "268435456",
        "min_supported_compute_capability": "7.5",
        "strict_readiness": "0",
        "exit_timeout": "5",
        "cache_enabled": "1",
    }


@pytest.mark.parametrize(
    "address, variable, expected",
    [("a:1", "b:2", "a:1"), (None, "b:2", "b:2"), (None, None, "auto")],
)
def test_options_say_where_models_run(monkeypatch, address, variable, expected):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    rows = dict(cells(option_table(options_from({"executor": "ray", "ray_address": address}))))

    assert (rows["executor"], rows["ray_address"]) == ("ray", expected)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_table_keeps_to_the_width_of_a_terminal(width):
    words = [f"word{index}" for index in range(30)]
    table = draw_table(("Name", "Words"), [("short", " ".join(words))], width)
    found = " ".join(row[1] for row in cells(table)).split()

    assert {len(line) for line in table.splitlines()} <= set(range(width - 10, width + 1))
    assert found == words
    assert cells(table)[0][0] == "short"


def test_table_breaks_words_that_are_too_long():
    table = draw_table(("Path",), [("/" * 50,)], 20)

    assert max(map(len, table.splitlines())) == 20
    assert table.count("/") == 50


def test_text_of_a_model_does_not_steer_the_terminal():
    table = model_table([IndexEntry("bad", "1", "UNAVAILABLE", "\x1b[31mred")])

    assert cells(table) == [["bad", "1", r"UNAVAILABLE: \u001b[31mred"]]


def test_repository_agents_are_listed_with_their_path():
    assert cells(agent_table({"checksum": "/lib/agents.py"})) == [["checksum", "/lib/agents.py"]]
