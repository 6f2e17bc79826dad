# SPDX-License-Identifier: Apache-2.0
"""What `serve` writes to the terminal."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import threading

import numpy as np
import pytest

from pytriton.base import announcement as announcements
from pytriton.base.announcement import (
    QUIET_SETTING,
    Addresses,
    Announced,
    announcement,
    say,
    says_in_colour,
    slow_end_is_told,
)
from pytriton.base.openai_routes import as_openai
from pytriton.model_config import DirectStrategy, SequenceBatcher
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from tests.e2e.waiting import DEADLINE_S

BOTH = Addresses("http://127.0.0.1:8000", "grpc://127.0.0.1:8001", "http://127.0.0.1:8002")
A, B = (TensorSpec(name, (1,), np.float32) for name in "ab")
WORDS = TensorSpec("words", (-1,), np.bytes_)


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


def model(name="Add", inputs=(A, B), outputs=(WORDS,), examples=None, **settings):
    config = TritonModelConfig(name, inputs=list(inputs), outputs=list(outputs), **settings)
    return Announced(config, examples or {})


def curl_of(lines):
    """The arguments of the curl line."""
    (line,) = [line for line in lines if line.startswith("  curl ")]
    return shlex.split(line)


def test_models_addresses_examples_and_the_end_are_told(monkeypatch):
    monkeypatch.setattr("signal.getsignal", lambda _: signal.SIG_DFL)

    assert announcement(BOTH, [model(), model("Words", [WORDS], [WORDS], decoupled=True)]) == [
        "",
        "Serving 2 models",
        "",
        "  Add    a FP32 [1], b FP32 [1] -> words BYTES [-1]",
        "  Words  words BYTES [-1] -> a stream of words BYTES [-1]",
        "",
        "  HTTP     http://127.0.0.1:8000",
        "  gRPC     grpc://127.0.0.1:8001",
        "  metrics  http://127.0.0.1:8002/metrics",
        "",
        "To ask it:",
        """  curl http://127.0.0.1:8000/v2/models/Add/generate -d '{"a": 1, "b": 1}'""",
        "  pytriton infer Add a=1 b=1",
        """  pytriton.client.ModelClient("http://127.0.0.1:8000", "Add") in Python""",
        "",
        f"To end it: Ctrl-C or `kill {os.getpid()}`",
        "",
    ]


@pytest.mark.parametrize(
    "routes, path, members",
    [
        (
            "chat,completions",
            "chat/completions",
            {"messages": [{"role": "user", "content": "Hello"}]},
        ),
        ("completions", "completions", {"prompt": "Hello"}),
        ("embeddings", "embeddings", {"input": "Hello"}),
    ],
)
def test_model_with_routes_of_openai_is_asked_there(routes, path, members):
    lines = announcement(BOTH, [model("Talk", openai=as_openai(routes)), model()])

    assert "  OpenAI   http://127.0.0.1:8000/v1" in lines
    _, url, _, body = curl_of(lines)
    assert url == f"http://127.0.0.1:8000/v1/{path}"
    assert json.loads(body) == {"model": "Talk", **members}
    assert '  openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none") in Python' in lines


def test_address_for_openai_needs_a_model_and_http():
    assert not any("OpenAI" in line for line in announcement(BOTH, [model()]))
    lines = announcement(Addresses("", BOTH.grpc), [model(openai=as_openai("chat"))])
    assert not any("/v1" in line for line in lines)


def test_another_port_is_named_for_the_command():
    lines = announcement(Addresses("http://127.0.0.1:8010", ""), [model()])

    assert "  pytriton infer Add --url http://127.0.0.1:8010 a=1 b=1" in lines


def test_page_is_among_the_addresses():
    assert "  page     http://h:1/#token=t" in announcement(
        Addresses("", "grpc://h:2", "", "http://h:1/#token=t"), [model()]
    )


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
    assert curl_of(announcement(BOTH, [model(inputs=inputs)])) == [
        "curl", f"{BOTH.http}/v2/models/Add",
    ]  # fmt: skip


def test_tensors_with_several_dimensions_are_sent_with_their_shape():
    matrix = TensorSpec("m", (-1, 2), np.float32)

    *_, url, option, body = curl_of(announcement(BOTH, [model(inputs=[matrix])]))

    assert (url, option) == (f"{BOTH.http}/v2/models/Add/infer", "-d")
    assert json.loads(body)["inputs"] == [
        {"name": "m", "shape": [1, 1, 2], "datatype": "FP32", "data": [1, 1]}
    ]


def test_examples_of_the_model_are_used_and_texts_are_quoted():
    mode = TensorSpec("mode", (1,), np.bytes_)
    top = TensorSpec("top", (1,), np.int64, optional=True)
    unknown = TensorSpec("unknown", (1,), np.int64, optional=True)
    asked = model(inputs=[mode, top, unknown], examples={"mode": "it's", "top": 5})
    lines = announcement(BOTH, [asked])

    assert json.loads(curl_of(lines)[-1]) == {"mode": "it's", "top": 5}
    assert any(shlex.split(line)[2:] == ["Add", "mode=it's", "top=5"] for line in lines
               if line.startswith("  pytriton infer"))  # fmt: skip
    assert any("top INT64 [1] (optional)" in line for line in lines)


def test_decoupled_model_is_asked_for_a_stream():
    lines = announcement(BOTH, [model(decoupled=True)])

    assert curl_of(lines)[1:3] == ["-N", f"{BOTH.http}/v2/models/Add/generate_stream"]
    assert f'  pytriton.client.DecoupledModelClient("{BOTH.grpc}", "Add") in Python' in lines


def test_sequence_is_begun():
    sequence = SequenceBatcher(strategy=DirectStrategy())
    members = json.loads(curl_of(announcement(BOTH, [model(sequence=sequence)]))[-1])

    assert members == {"a": 1, "b": 1, "sequence_id": 1, "sequence_start": True}


def test_server_without_http_is_asked_over_grpc():
    lines = announcement(Addresses("", BOTH.grpc), [model()])

    assert f"  gRPC     {BOTH.grpc}" in lines
    assert not any("curl" in line or "HTTP" in line for line in lines)
    assert f'  pytriton.client.ModelClient("{BOTH.grpc}", "Add") in Python' in lines


def test_server_without_models_says_so():
    lines = announcement(BOTH, [])

    assert "Serving no models yet" in lines
    assert "To ask it:" not in lines


def test_many_models_are_counted(monkeypatch):
    monkeypatch.setattr(announcements, "_MOST_MODELS", 2)

    assert "  and 3 more models" in announcement(BOTH, [model(f"M{number}") for number in range(5)])


def test_colours_add_nothing_but_colours():
    plain, coloured = (announcement(BOTH, [model()], colours=colours) for colours in (False, True))

    assert "\x1b[1mServing 1 model\x1b[0m" in coloured
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_have_them(monkeypatch, variables, expected):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", FakeTerminal())

    assert says_in_colour() is expected


def test_lines_go_to_standard_error(capsys):
    say(["a", "b"])

    assert capsys.readouterr() == ("", "a\nb\n")


@pytest.mark.parametrize("value, expected", [("1", ""), ("true", ""), ("0", "a\n"), ("", "a\n")])
def test_setting_asks_for_silence(capsys, monkeypatch, value, expected):
    monkeypatch.setenv(QUIET_SETTING, value)

    say(["a"])

    assert capsys.readouterr().err == expected


def test_slow_end_says_what_it_waits_for(monkeypatch):
    said = threading.Event()
    told = []
    monkeypatch.setattr(announcements, "say", lambda lines: (told.extend(lines), said.set()))

    with slow_end_is_told(patience_s=0):
        assert said.wait(DEADLINE_S)

    (line,) = told
    assert line.startswith("Waiting for requests that are under way. To end it at once: ")
    assert line.endswith(f"`kill {os.getpid()}`")


def test_quick_end_says_nothing(capsys):
    with slow_end_is_told(patience_s=600):
        pass

    assert capsys.readouterr().err == ""


def test_closed_standard_error_is_no_reason_to_fail(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)

    say(["a"])  # would raise if it wrote
