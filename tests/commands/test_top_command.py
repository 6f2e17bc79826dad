# SPDX-License-Identifier: Apache-2.0
"""`pytriton top` against running servers, and in a terminal."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from pytriton.__main__ import main
from pytriton.client import ModelClient
from tests.commands.conftest import TOKEN
from tests.commands.scripted_metrics import ScriptedServer
from tests.commands.terminal import Terminal
from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.free_ports import first_of_free_ports

PYTRITON = [sys.executable, "-m", "pytriton"]


def top(*arguments):
    return main(["top", *arguments])


def metrics(requests):
    labels = 'model="adder",version="1"'
    return (
        f"nv_inference_request_success{{{labels}}} {requests}\n"
        f"nv_inference_count{{{labels}}} {requests * 2}\n"
        f"nv_inference_exec_count{{{labels}}} {requests}\n"
        f"nv_inference_request_duration_us{{{labels}}} {requests * 5000}\n"
        f"nv_inference_pending_request_count{{{labels}}} 7\n"
        "nv_cpu_utilization 0.5\n"
    )


@pytest.fixture
def scripted():
    server = ScriptedServer(first_of_free_ports(3))
    server.text = metrics(0)
    server.index = [
        {"name": "adder", "version": "1", "state": "READY"},
        {"name": "broken", "version": "2", "state": "UNAVAILABLE", "reason": "no file"},
    ]
    server.start()
    yield server
    server.stop()


@pytest.fixture
def terminal():
    started = []

    def start(*arguments, **size):
        started.append(Terminal([*PYTRITON, "top", *arguments], **size))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_once_prints_a_row_for_each_model(any_server, capsys):
    arguments = ["--once", "--interval", "0.1", "-u", any_server.http]
    assert top(*arguments, "--metrics-url", any_server.metrics) == 0

    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:6] == ["MODEL", "VER", "STATE", "REQ/S", "INF/S", "ERR/S"]
    assert {"AddSub", "Count"} <= {line.split()[0] for line in rows}
    assert all(line.split()[1:3] == ["1", "READY"] for line in rows)


def test_json_has_the_numbers_of_each_model(any_server, capsys):
    with ModelClient(f"http://{any_server.http}", "AddSub") as client:
        one = np.ones((1, 1), np.float32)
        client.infer_batch(one, one)
    documents = []

    def has_memory():  # the real server looks at it now and then, and tells 0 before that
        assert top("--json", "--interval", "0.1", "-u", any_server.grpc) == 0
        documents.append(json.loads(capsys.readouterr().out))
        return documents[-1]["memory_total"] > 0

    assert eventually(has_memory)

    (model,) = [each for each in documents[-1]["models"] if each["name"] == "AddSub"]
    assert model["succeeded"] >= 1
    assert model["requests_s"] is not None


def test_our_server_tells_its_memory_age_and_instances(server, capsys):
    top("--json", "--interval", "0.1", "-u", server.http)

    document = json.loads(capsys.readouterr().out)
    assert document["server_memory"] > 1e6
    assert document["uptime_s"] > 0
    assert {each["instances"] for each in document["models"]} == {1}


@pytest.mark.usefixtures("strangers")
def test_statistics_are_read_where_metrics_are_out_of_reach(server, capsys):
    where = ["-u", server.http, "--metrics-url", "localhost:1"]
    assert top("--once", "--interval", "0.1", *where, "--token", TOKEN) == 0
    assert "AddSub" in capsys.readouterr().out

    assert top("--once", "--interval", "0.1", *where) == 1
    told = capsys.readouterr().err
    assert "No server answers at http://localhost:1" in told
    assert "give the right one with --token" in told


def test_live_view_needs_a_terminal(capsys):
    assert top() == 2

    assert capsys.readouterr().err == (
        "The live view needs a terminal; --once prints a table, --json a document.\n"
    )


@pytest.mark.parametrize("interval", ["0", "x", "1e9"])
def test_interval_that_makes_no_sense_is_refused(interval):
    with pytest.raises(SystemExit) as end:
        top("--interval", interval)

    assert end.value.code == 2


def masked(text):
    """A screen with the numbers that change replaced."""
    text = re.sub(r"localhost:\d+", "ADDRESS", text)
    text = re.sub(r"requests +\d+(\.\d+)?k?/s", "requests N/s", text)
    text = re.sub(r"(READY +)\d+(\.\d+)?k? ", r"\1N ", text)
    return re.sub(r"[▁▂▃▄▅▆▇█]+", "TREND", text)


def test_live_view_follows_the_server_and_the_keyboard(scripted, terminal):
    where = f"localhost:{scripted.port}"
    arguments = ["-u", where, "--metrics-url", where, "--interval", "0.2"]
    view = terminal(*arguments)
    view.wait_for("adder", "q quit")
    scripted.text = metrics(1_000_000)  # so many that every busy machine shows a rate
    view.wait_for("5.0ms")
    scripted.text = metrics(0)
    view.wait_for("adder", gone="5.0ms")

    view.press("\x1b[B")  # down, to the model that is broken
    view.press("\r")
    assert "reason      no file" in view.wait_for("broken version 2", "no file")
    view.press("\x1b")
    view.wait_for("MODEL")
    view.press("s")
    view.wait_for("s sort (requests/s)")
    view.press("/ad")
    view.wait_for("filter: ad", gone="broken")
    view.press("\r")
    view.wait_for("/ filter (ad)")
    view.press("p")
    view.wait_for("paused")
    view.press("?")
    view.wait_for("BATCH      average number of inferences")
    view.press("q")

    assert view.wait_for_end() == 0


def test_live_view_looks_as_expected(scripted, terminal):
    where = f"localhost:{scripted.port}"
    view = terminal("-u", where, "--metrics-url", where, "--interval", "0.2", height=10)
    screen = view.wait_for("requests 0/s", "READY          0      0", "? help")

    assert masked(screen) == (
        " pytriton top   http://ADDRESS  scripted 1.0\n"
        " models 1 of 2 ready   requests N/s   errors 0/s   queue 7\n"
        " cpu 50%   TREND\n"
        "\n"
        " MODEL        VER STATE      REQ/S  INF/S ERR/S QUEUE BATCH    AVG   IN-Q  INFER\n"
        " adder          1 READY          N      0     -     7     -      -      -      -\n"
        " broken         2 UNAVAIL.       -      -     -     -     -      -      -      -\n"
        "\n"
        "\n"
        " q quit  s sort (name)  / filter  e errors  Enter details  ? help"
    )


def test_server_that_goes_away_is_shown_and_found_again(scripted, terminal):
    where = f"localhost:{scripted.port}"
    view = terminal("-u", where, "--metrics-url", where, "--interval", "0.2", "--timeout", "1")
    view.wait_for("adder", "q quit")
    scripted.stop()
    view.wait_for(f"No server answers at http://{where}", "Trying again every 0.2 s")
    scripted.start()
    view.wait_for("requests 0/s", gone="No server answers")
    view.press("q")

    assert view.wait_for_end() == 0


def test_live_view_fits_a_new_size(scripted, terminal):
    where = f"localhost:{scripted.port}"
    view = terminal("-u", where, "--metrics-url", where, "--interval", "0.2", width=100)
    view.wait_for("IN-Q", "? help")
    view.resize(40, 12)
    screen = view.wait_for("adder", "AVG", gone="IN-Q")

    assert max(map(len, screen.split("\n"))) <= 40


def test_live_view_of_our_server(server, terminal):
    view = terminal("-u", server.http, "--interval", "0.2", width=100)
    screen = view.wait_for("models 5 of 5 ready", "requests ", "P99", "up ")
    view.press("\x03")

    assert "AddSub" in screen
    assert view.wait_for_end() == 130


def test_live_view_shows_the_last_errors_of_our_server(server, terminal):
    call(server.port, "/v2/models/nothing_like_it/infer", b'{"inputs": []}')

    view = terminal("-u", server.http, width=100)  # one's own server needs no token
    view.wait_for("AddSub")
    view.press("e")
    view.wait_for("Not found  no model, refused", "'nothing_like_it' is not found")
    view.press("e")
    view.wait_for("MODEL")
    view.press("q")
    untold = terminal("-u", server.http, "--token", "wrong", width=100)
    untold.wait_for("AddSub")
    untold.press("e")
    untold.wait_for("Places and messages need the page's token", "Not found  no model, refused")
    untold.press("q")

    assert view.wait_for_end() == untold.wait_for_end() == 0
