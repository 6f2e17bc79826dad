# SPDX-License-Identifier: Apache-2.0
"""The log of the page has what bound functions print, log and raise."""
# ruff: noqa: T201  what functions print is the subject

from __future__ import annotations

import asyncio
import logging
import sys
from urllib.parse import quote

import numpy as np
import pytest

from pytriton.model_config import Tensor
from pytriton.triton import RemoteTriton
from tests.e2e.http_client import call, json_body
from tests.e2e.waiting import eventually

ROW = {"dtype": np.float32, "shape": (-1,)}


def talk(requests):
    value = requests[0]["x"].flat[0]
    print("printed", value)
    print("complained", value, file=sys.stderr)
    logging.getLogger("user.code").warning("logged %s", value)
    if value < 0:
        raise ValueError(f"{value} is too small")
    return [{"y": request["x"]} for request in requests]


async def talk_later(requests):
    await asyncio.to_thread(print, "in a thread")
    return [{"y": request["x"]} for request in requests]


class LogReader:
    """Asks a server for the lines that it keeps."""

    def __init__(self, triton):
        self.triton = triton
        self.config = triton._config
        self._token = {"triton-access-token": triton.get_access_token()}

    def lines(self, **wanted):
        query = "&".join(f"{name}={quote(value)}" for name, value in wanted.items())
        answer = call(self.config.metrics_port, f"/page/api/log?{query}", headers=self._token)
        return answer.json["lines"]

    def texts(self, **wanted):
        return [line["text"] for line in self.lines(**wanted)]

    def bind(self, name, function):
        """Serves a function. In the test itself, as pytest replaces the streams before it."""
        bind(self.triton, name, function)

    def ask(self, model, value, request_id=""):
        body = json_body({"x": np.array([[value]], np.float32)}, id=request_id)
        return call(self.config.http_port, f"/v2/models/{model}/infer", body)


def bind(triton, name, function):
    triton.bind(name, function, [Tensor(name="x", **ROW)], [Tensor(name="y", **ROW)])


@pytest.fixture(params=[0, 2], ids=["in_process", "front_ends"])
def log(request, run_triton):
    return LogReader(run_triton(frontend_processes=request.param))


def test_log_has_what_a_function_prints_and_logs_with_model_and_request(log, capfd):
    log.bind("talk", talk)
    log.bind("later", talk_later)
    log.ask("talk", 3, "order-17")
    log.ask("later", 4, "order-18")

    assert eventually(lambda: "in a thread" in log.texts())
    by_text = {line["text"]: line for line in log.lines()}
    printed, complained, logged = (
        by_text[text] for text in ("printed 3.0", "complained 3.0", "logged 3.0")
    )
    assert (printed["place"], printed["level"]) == ("stdout", "INFO")
    assert (complained["place"], complained["level"]) == ("stderr", "INFO")
    assert logged["place"].startswith("test_kept_log.py:")
    assert logged["level"] == "WARNING"
    assert {line["model"] for line in (printed, complained, logged)} == {"talk"}
    assert printed["request_ids"] == logged["request_ids"] == ["order-17"]
    assert by_text["in a thread"]["request_ids"] == ["order-18"]
    assert log.texts(model="later") == ["in a thread"]
    assert log.texts(text="order-17", level="WARNING") == ["logged 3.0"]
    assert capfd.readouterr().out.count("printed 3.0\n") == 1


def test_repeated_failure_is_in_the_log_once_with_its_traceback(log, caplog):
    log.bind("talk", talk)
    for number in range(4):
        log.ask("talk", -1, f"bad-{number}")
    log.triton.unbind("talk")  # which tells the count

    def failures():
        return log.texts(level="ERROR", model="talk")

    assert eventually(lambda: len(failures()) == 2)
    first, count = failures()
    head = f"model 'talk': ValueError: -1.0 is too small at {place_of_error()}"
    assert first.splitlines()[:2] == [head, "Traceback (most recent call last):"]
    assert "pytriton/runtime" not in first
    assert count.startswith(f"{head} (3 more times in the last ")
    assert caplog.text.count("Traceback") == 1


def place_of_error():
    return f"test_kept_log.py:{talk.__code__.co_firstlineno + 6} in talk"


def test_log_has_no_prints_of_the_program_around_functions(log):
    log.bind("talk", talk)
    print("mine")
    log.ask("talk", 1)

    assert eventually(lambda: "printed 1.0" in log.texts())
    assert "mine" not in log.texts()


def test_functions_of_a_process_that_joined_are_in_the_log(log):
    with RemoteTriton(url=f"127.0.0.1:{log.config.http_port}") as remote:
        bind(remote, "joined", talk)
        log.ask("joined", 2, "order-19")

        assert eventually(lambda: "printed 2.0" in log.texts(model="joined"))


@pytest.mark.parametrize(
    "settings, is_captured", [("", True), ("allow_page=False", False)], ids=["page", "no_page"]
)
def test_streams_are_captured_while_a_server_has_a_page(start_script, settings, is_captured):
    # In a process of its own, as other servers of this one may capture them, too.
    script = start_script(
        f"""
        import json
        before = sys.stdout
        triton = Triton(config=TritonConfig({settings}))
        triton.bind("Model", identity, [X], [Y])
        triton.run()
        is_captured = sys.stdout is not before
        triton.stop()
        print(json.dumps([is_captured, sys.stdout is before]), flush=True)
        """
    )

    assert script.say() == [is_captured, True]
