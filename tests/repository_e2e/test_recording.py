# SPDX-License-Identifier: Apache-2.0
"""Recordings of a repository's models, in both places of front ends, and a shadow that is sick."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading

import numpy as np
import psutil
import pytest

from pytriton.__main__ import main
from pytriton.tools.perf.data.recorded import read_recording
from pytriton.tools.perf.load.plan import Concurrency, InputSet, LoadPlan, LoadProtocol
from pytriton.tools.perf.load.process_load import ProcessLoad
from tests.e2e.http_client import call, infer
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import code

TOKEN = "token-of-the-tests"
FLAG = f"--page-token={TOKEN}"
HEADERS = {"triton-access-token": TOKEN}
SMALL = """
max_batch_size: 64
backend: "python"
dynamic_batching {}
input [{name: "X" data_type: TYPE_FP32 dims: [2]}]
output [{name: "Y" data_type: TYPE_FP32 dims: [2]}]
"""
LARGE = """
max_batch_size: 0
backend: "python"
input [{name: "X" data_type: TYPE_FP32 dims: [-1]}]
output [{name: "Y" data_type: TYPE_FP32 dims: [-1]}]
"""
# One element is another as long as a file lies beside the code.
CHANGING = """
y = 2 * x
if os.path.exists(os.path.join(os.path.dirname(__file__), "changed")):
    y[617023] += 0.5
"""
MODELS = {
    "double": {"config.pbtxt": SMALL, "1/model.py": code("y = 2 * x")},
    "large": {"config.pbtxt": LARGE, "1/model.py": code(CHANGING)},
}
WRONG = {"double": {"config.pbtxt": SMALL, "1/model.py": code("y = 3 * x")}}
FRONT_ENDS = pytest.mark.parametrize("front_ends", [0, 2])


def metric(server, name, **labels):
    """The sum of the values of a family whose labels have these values."""
    text = call(server.metrics_port, "/metrics").body.decode()
    rows = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(value) for found, value in rows if all(each in found for each in wanted))


def status(server):
    return call(server.http_port, "/v2/recording", headers=HEADERS).json


@contextlib.contextmanager
def recorded(server, path, *options):
    """Record what happens inside."""
    result = []
    url = f"localhost:{server.http_port}"
    arguments = ["record", str(path), "-u", url, "--token", TOKEN, *options]
    thread = threading.Thread(target=lambda: result.append(main(arguments)))
    thread.start()
    try:
        assert eventually(lambda: status(server).get("running") or result)
        yield
    finally:
        body = json.dumps({"id": status(server)["id"]}).encode()
        call(server.http_port, "/v2/recording/stop", body, headers=HEADERS)
        thread.join(DEADLINE_S)
    assert result == [0]


def flood(server, requests, protocol=LoadProtocol.HTTP):
    """Send small requests, many at once; returns what became of them."""
    rows = np.arange(200, dtype=np.float32).reshape(100, 1, 2)
    port = server.http_port if protocol is LoadProtocol.HTTP else server.grpc_port
    inputs = [[InputSet({"X": row}) for row in rows]]
    load = ProcessLoad(LoadPlan(f"127.0.0.1:{port}", protocol, "double", inputs))
    try:
        load.start(Concurrency(16), requests)
        assert load.wait(DEADLINE_S)
    finally:
        records = load.stop()
    return records


@FRONT_ENDS
@pytest.mark.parametrize("protocol", list(LoadProtocol))
def test_requests_in_columns_are_recorded_each_with_its_own_answer(
    start_server, tmp_path, front_ends, protocol
):
    flags = [FLAG, f"--frontend-processes={front_ends}"]
    server = start_server(MODELS, flags=flags).await_ready()
    path = tmp_path / "a.rec"
    with recorded(server, path):
        records = flood(server, 600, protocol)
    exchanges = read_recording(path).exchanges

    assert records.ok.all()
    assert len(exchanges) == 600
    for exchange in exchanges:
        (given,), (answer,) = exchange.inputs, exchange.responses[0].outputs
        x, y = (np.frombuffer(each.data, np.float32) for each in (given, answer))
        assert given.shape == answer.shape == (1, 2)
        assert list(y) == list(2 * x)
    assert metric(server, "nv_inference_path_count", path="columns") > 0
    assert metric(server, "nv_recording_request_count") == 600


@FRONT_ENDS
def test_replay_finds_one_changed_element_in_a_million(start_server, tmp_path, front_ends, capsys):
    flags = [FLAG, f"--frontend-processes={front_ends}"]
    server = start_server(MODELS, flags=flags).await_ready()
    path = tmp_path / "a.rec"
    large = np.random.default_rng(3).random(1_000_000, np.float32)
    with recorded(server, path):
        infer(server.http_port, "large", {"X": large})
    urls = [f"localhost:{server.http_port}", f"grpc://localhost:{server.grpc_port}"]
    for url in urls:
        assert main(["replay", str(path), "-u", url]) == 0
    (server.repository / "large" / "1" / "changed").touch()
    capsys.readouterr()

    for url in urls:
        assert main(["replay", str(path), "-u", url]) == 1
        printed = capsys.readouterr().out
        assert "request 0 of large, output Y[617023]: expected" in printed
        assert "elements differ" not in printed


def test_server_that_chose_its_own_token_gives_nothing_away(start_server):
    server = start_server(MODELS).await_ready()
    for path in ("", "/fetch", "/stop"):
        answer = call(server.http_port, f"/v2/recording{path}", b"{}", headers=HEADERS)

        assert answer.status == 403
        assert "This API is restricted" in answer.error


def test_ones_own_server_is_recorded_without_giving_its_token(start_server, tmp_path, capsys):
    server = start_server(MODELS).await_ready()
    arguments = ["record", str(tmp_path / "a.rec"), "-u", f"localhost:{server.http_port}"]

    assert main([*arguments, "--seconds", "0.01"]) == 0, capsys.readouterr().err
    assert read_recording(tmp_path / "a.rec").end is not None


def shadowed(start_server, target, *flags, front_ends=0):
    url = f"localhost:{target}" if isinstance(target, int) else target
    every = [f"--shadow-url={url}", f"--frontend-processes={front_ends}", *flags]
    return start_server(MODELS, flags=every).await_ready()


def results(server):
    names = ("equal", "different", "failed", "skipped")
    return {each: metric(server, "nv_shadow_request_count", result=each) for each in names}


def accounted(server):
    return sum(results(server).values()) + metric(server, "nv_shadow_drop_count")


@FRONT_ENDS
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_shadow_gets_requests_and_its_answers_are_compared(start_server, front_ends, scheme):
    target = start_server(MODELS).await_ready()
    port = target.http_port if scheme == "http" else target.grpc_port
    server = shadowed(start_server, f"{scheme}://localhost:{port}", front_ends=front_ends)
    records = flood(server, 200)

    assert records.ok.all()
    assert eventually(lambda: accounted(server) == 200)
    assert results(server)["equal"] > 0
    labels = {"model": "double", "result": "equal"}
    assert metric(server, "nv_shadow_request_count", **labels) == results(server)["equal"]
    assert results(server)["different"] == results(server)["failed"] == 0
    assert metric(target, "nv_inference_request_success", model="double") > 0


def test_wrong_shadow_is_counted_and_named_in_the_log(start_server):
    target = start_server(WRONG).await_ready()
    server = shadowed(start_server, target.http_port)
    records = flood(server, 100)

    assert records.ok.all()
    assert eventually(lambda: accounted(server) == 100)
    assert results(server)["different"] > 0
    assert results(server)["equal"] == 0
    # Of the first input, only the second element is not zero.
    assert eventually(lambda: re.search(r"output Y\[0, [01]\]: expected", server.output))


def test_missing_shadow_fails_no_request(start_server):
    server = shadowed(start_server, free_ports(1)[0])
    records = flood(server, 300)

    assert records.ok.all()
    assert eventually(lambda: results(server)["failed"] > 0)
    assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_shadow_that_is_killed_or_hangs_fails_no_request(start_server, number):
    target = start_server(MODELS).await_ready()
    server = shadowed(start_server, target.http_port)
    flood(server, 50)
    assert eventually(lambda: results(server)["equal"] > 0)
    os.kill(target.pid, number)
    records = flood(server, 1000)

    assert records.ok.all()
    assert server.end() == 0
    os.kill(target.pid, signal.SIGKILL)


def test_process_of_the_shadow_that_is_killed_is_replaced(start_server):
    target = start_server(MODELS).await_ready()
    server = shadowed(start_server, target.http_port)
    sent = 20
    flood(server, sent)
    assert eventually(lambda: accounted(server) == sent)
    before = results(server)["equal"]
    (process,) = [
        each
        for each in psutil.Process(server.pid).children(recursive=True)
        if "pytriton.tools.replay.shadow" in " ".join(each.cmdline())
    ]
    process.kill()

    def is_equal_again():
        nonlocal sent
        sent += 20
        assert flood(server, 20).ok.all()
        assert eventually(lambda: accounted(server) == sent)
        return results(server)["equal"] > before

    assert eventually(is_equal_again)


@pytest.mark.parametrize(
    "flag, said",
    [
        ("--shadow-share=2", "Expected a number from 0 to 1 for --shadow-share"),
        ("--shadow-url=ftp://host", "Expected an address"),
    ],
)
def test_wrong_settings_of_a_shadow_are_refused(start_server, flag, said):
    server = start_server(MODELS, flags=[flag])

    assert server.exit_code() != 0
    assert said in server.output
