# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 on the HTTP port and the metrics port of a real server, with tools that others wrote."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import threading

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from tests.e2e.http2_client import Http2Session
from tests.e2e.http_client import binary_body, call, json_body
from tests.e2e.waiting import DEADLINE_S

ONE = np.ones((1, 1), np.float32)
BYTES_ROW = {"dtype": np.bytes_, "shape": (1,)}
SECONDS = str(int(DEADLINE_S))

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
needs_nghttp = pytest.mark.skipif(shutil.which("nghttp") is None, reason="nghttp is not installed")
needs_h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")


def double(requests):
    return [{"y": request["x"] * 2} for request in requests]


def letters(requests):
    """Answers with one response for each letter of a text."""
    for letter in requests[0]["text"].item().decode():
        yield [{"out": np.array([letter.encode()])}]


@pytest.fixture
def model(host):
    return host.bind(double, batching=True)


@pytest.fixture
def streaming(host):
    return host.bind(
        letters,
        [Tensor(name="text", **BYTES_ROW)],
        [Tensor(name="out", **BYTES_ROW)],
        decoupled=True,
        batching=False,
    )


@pytest.fixture
def session(host):
    with Http2Session(host.port) as session:
        yield session


def curl(*arguments: str, body: bytes | None = None) -> bytes:
    command = ["curl", "-sS", "-m", SECONDS, "--http2-prior-knowledge", *arguments]
    return subprocess.run(command, input=body, capture_output=True, check=True).stdout


# The same requests over both versions


def requests_of(model: str, streaming: str) -> dict[str, tuple]:
    infer = f"/v2/models/{model}/infer"
    compressed = gzip.compress(json_body({"x": ONE}), mtime=0)
    binary, binary_headers = binary_body({"x": ONE})
    large, large_headers = binary_body({"x": np.arange(500_000, dtype=np.float32)[None]})
    return {
        "metadata": ("/v2",),
        "readiness": ("/v2/health/ready",),
        "no body": ("/v2/health/ready", None, None, "HEAD"),
        "an index": ("/v2/repository/index", b"{}"),
        "a load": (f"/v2/repository/models/{model}/load", b"{}"),
        "JSON": (infer, json_body({"x": ONE}, id="7")),
        "large JSON": (infer, json_body({"x": np.ones((1, 30_000), np.float32)})),
        "binary": (infer, binary, binary_headers),
        "large binary": (infer, large, large_headers),
        "compressed": (infer, compressed, {"content-encoding": "gzip"}),
        "a compressed answer": (infer, json_body({"x": ONE}), {"accept-encoding": "gzip"}),
        "an unknown model": ("/v2/models/nobody/infer", json_body({"x": ONE})),
        "an unknown path": ("/nothing",),
        "a wrong method": (infer,),
        "a page of another origin": (infer, json_body({"x": ONE}), {"origin": "http://evil"}),
        "a wrong body": (infer, b"{"),
        "the page for browsers": ("/", None, {"accept": "text/html"}),
        "events": (f"/v2/models/{streaming}/generate_stream", b'{"text": "abc"}'),
        "one answer of several": (f"/v2/models/{streaming}/generate", b'{"text": "abc"}'),
        "one answer": (f"/v2/models/{streaming}/generate", b'{"text": "a"}'),
    }


def test_both_versions_give_the_same_answers(host, session, model, streaming):
    for name, request in requests_of(model, streaming).items():
        path, body, headers, method = (*request, None, None, None)[:4]
        headers = {**host.token, **(headers or {})}
        over_1 = call(host.port, path, body, headers, method)
        over_2 = session.call(path, body, headers, method)
        for each in (over_1, over_2):
            each.headers.pop("transfer-encoding", None)
            each.headers.pop("connection", None)

        assert over_2 == over_1, name


def test_metrics_and_the_page_are_served(host):
    with Http2Session(host.metrics_port) as session:
        metrics = session.call("/metrics")
        page = session.call("/", headers={"accept": "text/html"})
    over_1 = call(host.metrics_port, "/", headers={"accept": "text/html"})

    assert b"nv_server_processor_seconds" in metrics.body
    assert page == over_1


# Tools


@needs_curl
def test_curl_uploads_a_large_body_after_it_is_told_to_continue(host, model):
    body, headers = binary_body({"x": np.arange(3_000_000, dtype=np.float32)[None]})
    lines = [f"-H{name}: {value}" for name, value in headers.items()]
    url = f"http://127.0.0.1:{host.port}/v2/models/{model}/infer"
    seen = curl("-HExpect: 100-continue", *lines, "--data-binary", "@-", url, body=body)

    assert seen.endswith((np.arange(3_000_000, dtype=np.float32) * 2).tobytes())


@needs_nghttp
def test_nghttp_gets_several_answers_on_one_connection(host):
    urls = [f"http://127.0.0.1:{host.port}{path}" for path in ("/v2", "/v2/health/live", "/no")]
    seen = subprocess.run(
        ["nghttp", "-nv", *urls], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    ).stdout

    assert sorted(line.split()[-1] for line in seen.splitlines() if ":status:" in line) == [
        "200",
        "200",
        "404",
    ]


@needs_h2load
@pytest.mark.parametrize("shape", [("-c1", "-m100"), ("-c16", "-m10"), ("-c50", "-m1")], ids=str)
def test_h2load_fails_no_request(host, model, shape, tmp_path):
    body = tmp_path / "request"
    body.write_bytes(json_body({"x": ONE}))
    command = ["h2load", "-n3000", *shape, f"-d{body}"]
    command.append(f"http://127.0.0.1:{host.port}/v2/models/{model}/infer")
    seen = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE_S
    ).stdout

    assert "3000 succeeded, 0 failed, 0 errored" in seen


# The end of a server


class Load(threading.Thread):
    """Keeps requests in flight on one connection until the server wants no more."""

    def __init__(self, port: int, in_flight: int) -> None:
        super().__init__()
        self.session = Http2Session(port)
        self.in_flight = in_flight
        self.is_warm = threading.Event()
        self.begun = 0

    def run(self) -> None:
        session, number = self.session, 0
        with session:
            while not session.is_leaving and not session.is_closed:
                while len(session.pending) < self.in_flight and not session.is_leaving:
                    number += 1
                    body = json_body({"x": np.array([[number]], np.float32)}, id=str(number))
                    session.begin("/v2/models/double/infer", body)
                    self.begun += 1
                session.read()
                if len(session.answers) > 100:
                    self.is_warm.set()
            session.await_all()


@pytest.mark.parametrize("front_ends", [0, 2])
def test_server_that_stops_under_load_loses_no_request(run_triton, front_ends, monkeypatch):
    monkeypatch.setenv("PYTRITON_FRONTEND_PROCESSES", str(front_ends))
    triton = run_triton()
    row = {"dtype": np.float32, "shape": (-1,)}
    triton.bind(
        "double",
        double,
        [Tensor(name="x", **row)],
        [Tensor(name="y", **row)],
        config=ModelConfig(max_batch_size=16),
    )
    loads = [Load(triton._config.http_port, in_flight) for in_flight in (1, 10, 50, 50)]
    for load in loads:
        load.start()
    for load in loads:
        assert load.is_warm.wait(DEADLINE_S)
    triton.stop()
    for load in loads:
        load.join(DEADLINE_S)

    for load in loads:
        session = load.session
        assert not session.pending, "requests without an end"
        assert set(session.resets) <= session.refused
        assert len(session.answers) + len(session.refused) == load.begun
        statuses = {answer.status for answer in session.answers.values()}
        assert statuses <= {200, 503}, statuses
        for answer in session.answers.values():
            if answer.status == 200:
                document = answer.json
                assert document["outputs"][0]["data"] == [2.0 * float(document["id"])]
