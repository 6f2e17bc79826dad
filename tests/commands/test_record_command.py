# SPDX-License-Identifier: Apache-2.0
"""`pytriton record` and `pytriton replay` against a server of bound functions."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from pytriton.__main__ import main
from pytriton.client.kserve.address import parse_address
from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.http_client import kserve_client
from pytriton.client.kserve.records import ModelQuery, NamedArray
from pytriton.protocol.recording import RecordReader
from pytriton.tools.commands import record
from pytriton.tools.perf.data.recorded import read_recording
from pytriton.triton import TritonSecurityConfig
from tests.commands.conftest import TOKEN, serving
from tests.e2e.waiting import DEADLINE_S, eventually

BOTH = pytest.mark.parametrize("scheme", ["http", "grpc"])


def sums(value, **changes):
    array = np.full((1, 1), value, np.float32)
    inputs = (NamedArray("a", "FP32", array), NamedArray("b", "FP32", array))
    return ModelQuery("AddSub", "", inputs, **changes)


def count(value):
    return ModelQuery("Count", "", (NamedArray("n", "INT32", np.array([value], np.int32)),))


@contextlib.contextmanager
def client_of(url, headers=None):
    with contextlib.closing(kserve_client(parse_address(url), headers or {}, 60.0)) as client:
        yield client


def is_running(server):
    with client_of(server.http, {"triton-access-token": TOKEN}) as client:
        return client.get_document("/v2/recording").get("running", False)


@contextlib.contextmanager
def recorded(server, path, *options):
    """Record what happens inside, and end then; yields what the command has returned."""
    result = []

    def run():
        result.append(main(["record", str(path), "-u", server.http, "--token", TOKEN, *options]))

    thread = threading.Thread(target=run)
    thread.start()
    assert eventually(lambda: is_running(server) or not thread.is_alive())
    try:
        yield result
    finally:
        stop(server)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def stop(server):
    with client_of(server.http, {"triton-access-token": TOKEN}) as client:
        status = client.get_document("/v2/recording")
        if status.get("running"):
            client.post("/v2/recording/stop", json.dumps({"id": status["id"]}).encode())


@pytest.fixture
def recording(server, tmp_path):
    """A file with requests of both protocols, errors and streams."""
    path = tmp_path / "a.rec"
    with recorded(server, path) as result, client_of(server.http) as http:
        for value in range(20):
            http.infer(sums(value, request_id=f"r{value}"))
        with client_of(server.grpc) as grpc:
            grpc.infer(sums(100, outputs=("add",)))
            for value in (0, 3):
                assert len(list(grpc.stream(count(value)))) == value
    assert result == [0]
    return path


def test_recording_has_requests_with_their_answers(server, recording):
    file = read_recording(recording)
    sent = [each for each in file.exchanges if each.model == "AddSub"]

    assert file.problem == ""
    assert len(sent) == 21
    assert [each.id for each in sent][:20] == [f"r{value}" for value in range(20)]
    assert sent[20].outputs == ["add"]
    assert np.frombuffer(sent[3].responses[0].outputs[0].data, np.float32) == [6.0]
    assert all(each.ended_ns >= each.responses[0].after_ns > 0 for each in sent)
    streams = [each for each in file.exchanges if each.is_decoupled]
    assert [len(each.responses) for each in streams] == [0, 3]


@pytest.mark.usefixtures("strangers")
def test_server_of_somebody_else_is_recorded_with_its_token_only(server, tmp_path, capsys):
    assert main(["record", str(tmp_path / "other.rec"), "-u", server.http]) == 1
    assert "only with its access token" in capsys.readouterr().err


def test_replay_to_the_port_of_the_metrics_names_the_right_one(server, recording, capsys):
    assert main(["replay", str(recording), "-u", server.metrics]) == 1
    assert capsys.readouterr().err == (
        f"The address is another port: {server.metrics} is the port of the metrics; "
        f"expected the port for HTTP, {server.http}.\n"
    )


def test_file_is_for_its_owner_only(recording):
    assert recording.stat().st_mode & 0o077 == 0


@BOTH
def test_replay_finds_all_answers_equal(server, recording, scheme, capsys):
    code = main(["replay", str(recording), "-u", getattr(server, scheme), "--speed", "2"])

    printed = capsys.readouterr().out
    assert code == 0, printed
    compared = 23 if scheme == "grpc" else 21
    assert f"All {compared} answers that were compared are equal." in printed
    assert ("decoupled models" in printed) == (scheme == "http")


def test_replay_at_a_concurrency_writes_its_reports(server, recording, tmp_path, capsys):
    files = ["--json-file", str(tmp_path / "r.json"), "--json"]
    code = main(["replay", str(recording), "-u", server.http, "--concurrency", "4", *files])

    assert code == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert document == json.loads(capsys.readouterr().out)
    assert document["requests"] == document["compared"] == 21


def test_replay_draws_a_page(server, recording, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    code = main(["replay", str(recording), "-u", server.grpc, "--page", str(page)])

    assert code == 0
    assert page.read_text().count("<svg") == 4


def test_replay_finds_an_answer_that_differs(server, recording, tmp_path, capsys):
    data = recording.read_bytes()
    right, wrong = np.float32(14).tobytes(), np.float32(15).tobytes()
    exchanges = read_recording(recording).exchanges
    (number,) = (each.number for each in exchanges if each.id == "r7")
    changed = tmp_path / "b.rec"
    changed.write_bytes(resealed(data, right, wrong))
    code = main(["replay", str(changed), "-u", server.http])

    printed = capsys.readouterr().out
    assert code == 1
    assert f"request {number} of AddSub, output add[0, 0]: expected 15.0, got 14.0" in printed


def resealed(data, old, new):
    """The same file with another value in one answer, and right checksums."""
    from pytriton.protocol.recording import MAGIC, Exchange, encode_record  # noqa: PLC0415

    parts = [MAGIC]
    for each in RecordReader().feed(data):
        part = encode_record(each)
        if isinstance(each, Exchange) and each.id == "r7":
            output = each.responses[0].outputs[0]
            changed = type(output)(
                output.name, output.datatype, output.shape, output.data.replace(old, new)
            )
            each.responses[0].outputs[0] = changed
            part = encode_record(each)
        parts.append(part)
    return b"".join(parts)


def test_redacted_inputs_are_zeros_and_their_answers_are_not_compared(server, tmp_path, capsys):
    path = tmp_path / "a.rec"
    with recorded(server, path, "--redact", "a"), client_of(server.http) as http:
        http.infer(sums(7))
    (exchange,) = read_recording(path).exchanges

    assert [each.data for each in exchange.inputs] == [bytes(4), np.float32(7).tobytes()]
    assert main(["replay", str(path), "-u", server.http]) == 0
    assert "1 request has redacted inputs" in capsys.readouterr().out


def test_only_the_models_that_were_asked_for_are_recorded(server, tmp_path):
    path = tmp_path / "a.rec"
    with recorded(server, path, "--model", "Count"), client_of(server.grpc) as grpc:
        grpc.infer(sums(1))
        list(grpc.stream(count(1)))

    assert [each.model for each in read_recording(path).exchanges] == ["Count"]


def test_recording_ends_at_its_number_of_requests(server, tmp_path, capsys):
    path = tmp_path / "a.rec"
    with recorded(server, path, "--requests", "3") as result, client_of(server.http) as http:
        for value in range(5):
            http.infer(sums(value))
        assert eventually(lambda: result)

    assert "3 requests" in capsys.readouterr().out
    assert len(read_recording(path).exchanges) == 3


def test_recording_needs_the_right_token(server, tmp_path, capsys):
    given = ["-u", server.http, "--token", "wrong"]

    assert main(["record", str(tmp_path / "a.rec"), *given]) == 1
    assert "access token" in capsys.readouterr().err
    assert not (tmp_path / "a.rec").exists()


@pytest.mark.e2e
def test_recording_of_ones_own_server_needs_no_token(tmp_path, capsys):
    with serving(TritonSecurityConfig(restricted_endpoints=[])) as own:
        code = main(["record", str(tmp_path / "a.rec"), "-u", own.http, "--seconds", "0.1"])

    assert code == 0, capsys.readouterr().err
    assert read_recording(tmp_path / "a.rec").problem == ""


@BOTH
def test_replay_to_ones_own_server_needs_no_token(server, recording, scheme, capsys):
    security = TritonSecurityConfig(access_token="other", restricted_endpoints=["inference"])
    with serving(security) as own:
        code = main(["replay", str(recording), "-u", getattr(own, scheme), "--concurrency", "1"])

    assert code == 0, capsys.readouterr()


@pytest.mark.parametrize("path", ["", "/fetch", "/stop"])
def test_request_for_a_recording_without_a_token_is_refused(server, path):
    with client_of(server.http) as client, pytest.raises(AskError, match="access token"):
        client.post(f"/v2/recording{path}", b"{}")


def test_recording_does_not_replace_a_file_unasked(server, tmp_path, capsys):
    path = tmp_path / "a.rec"
    path.write_text("mine")

    assert main(["record", str(path), "-u", server.http, "--token", TOKEN]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_file_that_is_replaced_is_for_its_owner_only(server, tmp_path):
    path = tmp_path / "a.rec"
    path.touch(0o644)
    options = ["--overwrite", "--seconds", "0.1"]

    assert main(["record", str(path), "-u", server.http, *options]) == 0
    assert path.stat().st_mode & 0o077 == 0


def test_recording_needs_http(server, tmp_path, capsys):
    assert main(["record", str(tmp_path / "a.rec"), "-u", server.grpc, "--token", TOKEN]) == 1
    assert "over HTTP" in capsys.readouterr().err


def test_full_disk_ends_the_recording_and_fails_no_request(server, tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.rec"
    limit = 6000

    class SmallDisk(record.io.FileIO):
        def write(self, data):
            room = limit - self.tell()
            if room <= 0:
                raise OSError(28, "No space left on device")
            return super().write(memoryview(data)[:room])

    monkeypatch.setattr(record.io, "FileIO", SmallDisk)
    with recorded(server, path) as result, client_of(server.http) as http:
        for value in range(100):
            http.infer(sums(value))
        assert eventually(lambda: result)

    assert result == [1]
    assert "No space left on device. The recording has ended" in capsys.readouterr().err
    file = read_recording(path)
    assert len(file.exchanges) > 0
    assert path.stat().st_size <= limit
    with client_of(server.metrics) as metrics:
        assert 'nv_recording_end_count{reason="disk"} 1' in metrics.get_text("/metrics")


def test_interrupted_recording_is_whole(server, tmp_path):
    path = tmp_path / "a.rec"
    arguments = ["record", str(path), "-u", server.http, "--token", TOKEN]
    with subprocess.Popen(
        [sys.executable, "-m", "pytriton", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert eventually(lambda: is_running(server) and path.exists())
            with client_of(server.http) as http:
                http.infer(sums(1))
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    assert process.returncode == 0
    assert "1 requests" in out
    assert "its client has stopped it" in out
    assert read_recording(path).problem == ""


@pytest.mark.parametrize(
    "load", [("--concurrency-range", "2", "--request-count", "42"), ("--fixed-schedule",)]
)
def test_perf_takes_a_recording_as_its_data(server, recording, tmp_path, load, capsys):
    path = tmp_path / "run.json"
    options = ["--input-data", str(recording), "-u", server.http, "--json", str(path)]
    code = main(["perf", "AddSub", *options, *load, "--allow-unstable"])

    printed = capsys.readouterr()
    assert code == 0, printed.err
    (level,) = json.loads(path.read_text())["runs"][0]["levels"]
    assert level["failed"] == 0
    assert level["requests"] == (21 if load == ("--fixed-schedule",) else 42)
