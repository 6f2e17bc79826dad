# SPDX-License-Identifier: Apache-2.0
"""What `serve` writes to the terminal."""

from __future__ import annotations

import json
import os
import shlex
import signal

import numpy as np
import pytest

from pytriton import announcement as announcements
from pytriton.announcement import QUIET_SETTING, Addresses, announcement, say
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

BOTH = Addresses("http://127.0.0.1:8000", "grpc://127.0.0.1:8001", "http://127.0.0.1:8002")
A, B = (TensorSpec(name, (1,), np.float32) for name in "ab")
WORDS = TensorSpec("words", (-1,), np.bytes_)


def model(name="Add", inputs=(A, B), outputs=(WORDS,), **settings):
    return TritonModelConfig(name, inputs=list(inputs), outputs=list(outputs), **settings)


def test_models_addresses_examples_and_the_end_are_told(monkeypatch):
    monkeypatch.setattr("signal.getsignal", lambda _: signal.SIG_DFL)
    first, described, curl, python, end = announcement(BOTH, [model()])

    assert first == (
        "Serving at http://127.0.0.1:8000 and grpc://127.0.0.1:8001, "
        "metrics at http://127.0.0.1:8002/metrics"
    )
    assert described == "  Add: a FP32 [1], b FP32 [1] -> words BYTES [-1]"
    program, url, option, body = shlex.split(curl.removeprefix("To ask it: "))
    assert (program, url, option) == ("curl", f"{BOTH.http}/v2/models/Add/infer", "-d")
    assert json.loads(body)["inputs"][1] == {
        "name": "b", "shape": [1, 1], "datatype": "FP32", "data": [1],
    }  # fmt: skip
    assert python == 'In Python: pytriton.client.ModelClient("http://127.0.0.1:8000", "Add")'
    assert end == f"To end it: Ctrl-C or `kill {os.getpid()}`"


@pytest.mark.parametrize(
    "interrupt, pid, expected",
    [
        (signal.default_int_handler, 77, "Ctrl-C or `kill 77`"),
        (signal.SIG_IGN, 77, "`kill 77`"),
        (signal.default_int_handler, 1, "Ctrl-C"),
        (signal.SIG_IGN, 1, "`kill -KILL 1` from outside of the container"),
    ],
)
def test_only_what_ends_the_process_is_advised(monkeypatch, interrupt, pid, expected):
    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: signal.SIG_DFL}
    monkeypatch.setattr("signal.getsignal", handlers.get)
    monkeypatch.setattr("os.getpid", lambda: pid)

    assert announcements.ways_to_end() == expected


@pytest.mark.parametrize(
    "inputs",
    [[TensorSpec("image", (224, 224, 3), np.uint8)], [TensorSpec("x", (1,), np.float16)]],
    ids=["large", "no JSON"],
)
def test_model_that_is_not_asked_with_a_line_is_asked_for_its_metadata(inputs):
    lines = announcement(BOTH, [model(inputs=inputs)])

    assert f"To ask it: curl {BOTH.http}/v2/models/Add" in lines


def test_decoupled_model_is_asked_by_its_client():
    lines = announcement(BOTH, [model(decoupled=True)])

    assert f'In Python: pytriton.client.DecoupledModelClient("{BOTH.grpc}", "Add")' in lines


def test_server_without_http_is_asked_over_grpc():
    lines = announcement(Addresses("", BOTH.grpc), [model()])

    assert lines[0] == f"Serving at {BOTH.grpc}"
    assert not any("curl" in line for line in lines)
    assert f'In Python: pytriton.client.ModelClient("{BOTH.grpc}", "Add")' in lines


def test_server_without_models_says_so():
    assert announcement(BOTH, [])[1:-1] == ["  no models yet"]


def test_many_models_are_counted(monkeypatch):
    monkeypatch.setattr(announcements, "_MOST_MODELS", 2)

    assert "  and 3 more models" in announcement(BOTH, [model(f"M{number}") for number in range(5)])


def test_lines_go_to_standard_error(capsys):
    say(["a", "b"])

    assert capsys.readouterr() == ("", "a\nb\n")


@pytest.mark.parametrize("value, expected", [("1", ""), ("true", ""), ("0", "a\n"), ("", "a\n")])
def test_setting_asks_for_silence(capsys, monkeypatch, value, expected):
    monkeypatch.setenv(QUIET_SETTING, value)

    say(["a"])

    assert capsys.readouterr().err == expected


def test_closed_standard_error_is_no_reason_to_fail(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)

    say(["a"])
