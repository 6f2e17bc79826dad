# SPDX-License-Identifier: Apache-2.0
"""`pytriton models` against running servers."""

from __future__ import annotations

import json

import pytest

from pytriton.__main__ import main
from pytriton.tools.commands.model_cards import ModelCard
from pytriton.tools.commands.models import details_text, table_text
from tests.commands.conftest import TOKEN

ROW = "AddSub   1        READY      8  a FP32[1], b FP32[1] → add FP32[1], sub FP32[1]"


def list_of(*arguments):
    return main(["models", *arguments])


def test_models_are_listed_with_states_and_signatures(server, capsys):
    assert list_of("-u", server.http, "--token", TOKEN) == 0

    printed = capsys.readouterr()
    head, *rows = printed.out.splitlines()
    assert head.startswith(f"http://{server.http}: ")
    assert head.endswith(", 5 models")
    assert rows == [
        "MODEL    VERSION  STATE  BATCH  INPUTS → OUTPUTS",
        ROW,
        "Count    1        READY     no  n INT32[1] → value INT32[1]  (decoupled)",
        (
            "Echo     1        READY      4  pair INT8[2], texts? BYTES[-1] → pair INT8[2], "
            "texts BYTES[-1]"
        ),
        "Endless  1        READY     no  n INT32[1] → value INT32[1]  (decoupled)",
        "Tell     1        READY     no  prompt BYTES[1] → word BYTES[1]  (decoupled)",
    ]
    assert printed.err == ""


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_models_are_listed_without_a_token_and_the_source_is_named(server, scheme, capsys):
    assert list_of("-u", getattr(server, scheme)) == 0

    printed = capsys.readouterr()
    assert ROW in printed.out
    assert "The repository index needs the access token (--token)" in printed.err


@pytest.mark.usefixtures("strangers")
def test_list_that_only_a_token_opens_says_so(server, capsys):
    assert list_of("-u", server.http, "--metrics-url", "localhost:1") == 1

    told = capsys.readouterr().err
    assert "only with its access token: give the right one with --token or in the variable" in told
    assert "nothing answers at http://localhost:1; --metrics-url says where they are." in told


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_real_servers_are_listed(any_server, scheme, capsys):
    assert list_of("-u", getattr(any_server, scheme), "--json") == 0

    cards = {card["name"]: card for card in json.loads(capsys.readouterr().out)["models"]}
    assert cards["AddSub"] == {
        "name": "AddSub",
        "version": "1",
        "state": "READY",
        "reason": "",
        "platform": "python",
        "max_batch_size": 8,
        "decoupled": False,
        "sequence": False,
        "ensemble_steps": [],
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [-1, 1], "optional": False}
            for name in ("a", "b")
        ],
        "outputs": [
            {"name": name, "datatype": "FP32", "shape": [-1, 1], "optional": False}
            for name in ("add", "sub")
        ],
    }
    assert cards["Count"]["decoupled"]


def test_one_model_is_described(server, capsys):
    assert list_of("Count", "-u", server.http) == 0

    assert capsys.readouterr().out == (
        "Count version 1\n"
        "  state       READY\n"
        "  backend     python\n"
        "  serves      streams\n"
        "  instances   1 on CPU\n"
        "  inputs      n  INT32 [1]\n"
        "  outputs     value  INT32 [1]\n"
        f"  ask it      pytriton infer Count n=1 -u http://{server.http}\n"
    )


def test_model_that_failed_keeps_to_its_row_and_is_described_with_every_line():
    reason = "Internal: ValueError: no weights\n\nAt:\n  a/1/lib.py(2): g\n  a/1/model.py(7): f\n"
    card = ModelCard("a", "1", "UNAVAILABLE", reason)

    assert table_text([card], None, is_coloured=False).splitlines()[1:] == [
        "a      1        UNAVAILABLE      -  Internal: ValueError: no weights, at a/1/lib.py(2): g"
    ]
    assert details_text([card], "").splitlines() == [
        "a version 1",
        "  state       UNAVAILABLE",
        "  reason      Internal: ValueError: no weights",
        "              At:",
        "                a/1/lib.py(2): g",
        "                a/1/model.py(7): f",
    ]


def test_one_model_as_json_has_its_configuration(server, capsys):
    assert list_of("AddSub", "-u", server.grpc, "--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert document["config"]["max_batch_size"] == 8
    assert [card["name"] for card in document["models"]] == ["AddSub"]


def test_model_that_is_not_there_is_said_with_names(server, capsys):
    assert list_of("Cuont", "-u", server.http) == 1

    told = capsys.readouterr().err
    assert "There is no model 'Cuont'" in told
    assert "Did you mean 'Count'?" in told


@pytest.mark.parametrize(
    "command",
    [["infer", "AddSub"], ["models"], ["top", "--once"], ["perf", "AddSub", "--request-count=1"]],
    ids=lambda command: command[0],
)
def test_port_of_the_metrics_is_told_from_that_for_http(server, command, capsys):
    assert main([*command, "-u", server.metrics]) != 0

    assert (
        f"{server.metrics} is the port of the metrics; expected the port for HTTP, {server.http}"
    ) in capsys.readouterr().err


def test_port_for_grpc_is_told_from_that_for_http(server, capsys):
    port = server.grpc.removeprefix("grpc://")

    assert main(["perf", "AddSub", "-u", port]) == 99

    told = capsys.readouterr().err
    assert f"{port} does not speak HTTP; is it the port for gRPC? That needs -i grpc" in told
