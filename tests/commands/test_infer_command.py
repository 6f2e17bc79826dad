# SPDX-License-Identifier: Apache-2.0
"""`pytriton infer` against running servers, over both protocols."""

from __future__ import annotations

import argparse
import datetime as dt
import io
import json
import re
import shlex
import signal
import ssl
import subprocess
import sys

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pytriton.__main__ import main
from pytriton.tools.commands.infer.command import question_of
from pytriton.tools.commands.infer.values import Given
from pytriton.tools.commands.model_cards import ModelCard
from tests.commands import models
from tests.commands.conftest import TOKEN
from tests.commands.scripted_metrics import ScriptedServer
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import free_ports


@pytest.fixture(params=["http", "grpc"])
def address(request):
    """Picks the address of a server by protocol."""
    return lambda server: getattr(server, request.param)


def masked(text):
    """A text with the times that change from run to run replaced."""
    return re.sub(r" *[0-9.]+ m?s", " TIME", text)


def ask(*arguments):
    return main(["infer", *arguments])


def test_answer_is_shown_with_names_types_shapes_and_values(any_server, address, capsys):
    assert ask("AddSub", "a=1", "b=2.5", "-u", address(any_server)) == 0

    assert masked(capsys.readouterr().out) == (
        "AddSub version 1, TIME\n  add  FP32 [1, 1]  3.5\n  sub  FP32 [1, 1]  -1.5\n"
    )


def test_responses_of_a_stream_have_numbers(any_server, address, capsys):
    assert ask("Count", "n=3", "-u", address(any_server)) == 0

    assert masked(capsys.readouterr().out) == (
        "#1 TIME  value  INT32 [1]  0\n#2 TIME  value  INT32 [1]  1\n#3 TIME  value  INT32 [1]  2\n"
    )


def test_model_without_values_shows_its_signature_and_a_line_that_works(server, address, capsys):
    url = address(server)
    assert ask("AddSub", "-u", url) == 0

    shown = capsys.readouterr().out
    assert shown.startswith(
        "AddSub version 1 (batches of up to 8)\n"
        "  inputs:\n    a  FP32 [-1, 1]\n    b  FP32 [-1, 1]\n"
        "  outputs:\n    add  FP32 [-1, 1]\n    sub  FP32 [-1, 1]\n\n"
    )
    line = shown.splitlines()[-1].removeprefix("Ask it: pytriton ")
    assert main(line.split()) == 0
    assert "add  FP32 [1, 1]  3.0" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["Count", "Tell", "Echo"])
def test_line_of_the_signature_works_for_every_model(server, model, capsys):
    ask(model, "-u", server.http)
    line = capsys.readouterr().out.splitlines()[-1].removeprefix("Ask it: pytriton ")
    words = shlex.split(line)

    assert main(words) == 0


def test_values_come_from_every_place(server, address, tmp_path, monkeypatch, capsys):
    url = address(server)
    rows = np.array([[1], [2]], np.float64)
    np.save(tmp_path / "a.npy", rows)
    (tmp_path / "b.json").write_text("[[3], [4]]")
    assert ask("AddSub", f"a=@{tmp_path}/a.npy", f"b=@{tmp_path}/b.json", "-u", url) == 0
    np.savez(tmp_path / "both.npz", a=rows, b=rows + 2)
    assert ask("AddSub", "--npy", f"{tmp_path}/both.npz", "-u", url) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[[3], [4]]")))
    assert ask("AddSub", "--npy", f"a={tmp_path}/a.npy", "b=-", "-u", url) == 0
    assert ask("AddSub", "--json", '{"a": [[1], [2]], "b": [[3], [4]]}', "-u", url) == 0

    answers = masked(capsys.readouterr().out).split("AddSub version 1, TIME\n")[1:]
    assert len(answers) == 4
    assert set(answers) == {
        "  add  FP32 [2, 1]\n    [[4.],\n     [6.]]\n  sub  FP32 [2, 1]\n    [[-2.],\n     [-2.]]\n"
    }


def test_request_of_kserve_is_sent_as_it_is(server, capsys):
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [2, 1], "data": [1, 2]} for name in ("a", "b")
    ]
    body = {"id": "seven", "inputs": tensors, "outputs": [{"name": "add"}]}
    assert ask("AddSub", "--json", json.dumps(body), "-u", server.http, "--json-output") == 0

    assert json.loads(capsys.readouterr().out) == {
        "model_name": "AddSub",
        "model_version": "1",
        "id": "seven",
        "outputs": [{"name": "add", "datatype": "FP32", "shape": [2, 1], "data": [[2.0], [4.0]]}],
    }


def test_bytes_of_a_file_are_sent_and_shown(server, tmp_path, capsys):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(250)))
    path = f"texts=@{tmp_path}/image.png"
    assert ask("Echo", "pair=[1, 2]", path, "-u", server.http, "--output", "texts") == 0

    shown = capsys.readouterr().out
    assert "<258 bytes: 89 50 4e 47 0d 0a 1a 0a 00 01 02 03 04 05 06 07 ...>" in shown


def test_texts_are_shown_as_texts(server, capsys):
    arguments = ["Echo", "pair=[1, 2]", 'texts=["größe", "b\\u001b[2J"]', "-u", server.grpc]
    assert ask(*arguments) == 0

    shown = capsys.readouterr().out
    assert '  texts  BYTES [1, 2]  [["größe", "b\\u001b[2J"]]' in shown
    assert "  pair   INT8 [1, 2]   [[1, 2]]" in shown


def test_texts_of_a_stream_are_joined_where_only_values_are_wanted(server, address, capsys):
    assert ask("Tell", "prompt=once upon a time", "-u", address(server), "--values") == 0

    assert capsys.readouterr().out == "once upon a time \n"


def test_stream_is_json_lines_and_saved(server, address, tmp_path, capsys):
    path = tmp_path / "out.npz"
    arguments = ["Count", "2", "-u", address(server), "--json-output", "--save", str(path)]
    assert ask(*arguments) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["outputs"][0]["data"] for line in lines] == [[0], [1]]
    with np.load(path) as saved:
        assert {name: saved[name].tolist() for name in saved.files} == {
            "value_1": [0],
            "value_2": [1],
        }


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (
            ["AdSub", "a=1"],
            "There is no model 'AdSub' on {}. Did you mean 'AddSub'? It has AddSub,",
        ),
        (["AddSub", "a=1"], "Input 'b' is missing. Its inputs are a FP32 [-1, 1], b FP32 [-1, 1]."),
        (["AddSub", "c=1"], "AddSub has no input 'c'. Its inputs are"),
        (["AddSub", "1"], "Expected name=value, got '1'. Its inputs are"),
        (
            ["AddSub", "a=x", "b=1"],
            "Input 'a' expects FP32 as JSON, such as 1 or [1, 2, 3], got 'x'",
        ),
        (["AddSub", "a=1", "a=2"], "Input 'a' is given twice."),
        (["AddSub", "a=@none.npy", "b=1"], "none.npy cannot be read: No such file or directory."),
        (["AddSub", "--output", "x", "a=1", "b=1"], "AddSub has no output 'x'; it has add, sub."),
        (["AddSub", "a=1", "b=1", "--start"], "give its --sequence-id, too."),
        (
            ["AddSub", "a=1", "b=1", "--parameter", "x"],
            "Expected a parameter as name=value, got 'x'",
        ),
        (["AddSub", "a=1", "b=1", "-H", "x"], "Expected a header as NAME:VALUE, got 'x'."),
        (["AddSub", "a=[1]", "b=[[1],[2]]"], "{} answered with an error: "),
        (["AddSub", "--json", "[1]"], "Expected an object of values by name, got list."),
        (["AddSub", "--json", "{"], "The text is not JSON: "),
        (["AddSub", "--version", "7", "a=1"], "Model 'AddSub' has no version 7 on {}; it has 1."),
    ],
)
def test_what_is_wrong_is_said_in_one_line(server, address, arguments, complaint, capsys):
    assert ask(*arguments, "-u", address(server)) == 1

    printed = capsys.readouterr()
    where = address(server) if "//" in address(server) else f"http://{address(server)}"
    assert complaint.format(where) in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("scheme", ["", "grpc://"])
def test_server_that_is_not_there_is_said(scheme, capsys):
    assert ask("AddSub", "a=1", "-u", f"{scheme}localhost:1") == 1

    told = f"No server answers at {scheme or 'http://'}localhost:1: the connection was refused.\n"
    assert capsys.readouterr().err == told


def test_port_of_the_other_protocol_is_recognised(server, capsys):
    assert ask("AddSub", "-u", server.grpc.removeprefix("grpc://")) == 1
    assert ask("AddSub", "-u", f"grpc://{server.http}") == 1

    over_http, over_grpc = capsys.readouterr().err.splitlines()
    assert over_http.endswith("does not speak HTTP; is it the port for gRPC?")
    assert "this port serves HTTP, not gRPC, which is at port " in over_grpc


def test_ctrl_c_cancels_a_stream(server, address):
    models.cancelled.clear()
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from pytriton.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "infer", "Endless", "n=1", "-u", address(server)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=DEADLINE_S)

    assert first.startswith("#1 ")
    assert (process.returncode, error) == (130, "Interrupted\n")
    assert eventually(models.cancelled.is_set)


@pytest.mark.usefixtures("strangers")
def test_token_and_headers_are_sent(server, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_ACCESS_TOKEN", TOKEN)
    assert ask("NoModel", "-u", server.http) == 1

    assert "It has AddSub, Count, Echo, Endless, Tell." in capsys.readouterr().err


def test_sequences_and_parameters_are_part_of_the_question():
    options = argparse.Namespace(
        version="",
        output=None,
        parameter=["k=1", "t=x"],
        id="",
        sequence_id="7",
        start=True,
        end=False,
    )
    question = question_of(options, ModelCard("m", inputs=(), outputs=()), Given())

    assert question.parameters == {
        "k": 1,
        "t": "x",
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
    }


def self_signed(folder):
    """Files with a certificate for localhost and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    day = dt.timedelta(days=1)
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    return folder / "certificate.pem", folder / "key.pem"


def test_certificates_are_checked(tmp_path, capsys):
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ScriptedServer(free_ports(1)[0], context)
    server.index = [{"name": "m", "version": "1", "state": "UNAVAILABLE"}]
    server.start()
    url = f"https://localhost:{server.port}"
    assert main(["models", "-u", url]) == 1
    assert main(["models", "-u", url, "--ca-file", str(certificate)]) == 0
    assert main(["models", "-u", url, "--ca-file", "none.pem"]) == 1
    server.stop()

    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert "its certificate is not trusted (self" in first
    assert "--ca-file names one to trust" in first
    assert second == "none.pem cannot be read: No such file or directory."
    assert "UNAVAILABLE" in printed.out


def test_only_the_model_is_missing_from_an_empty_command_line(capsys):
    with pytest.raises(SystemExit) as end:
        main(["infer"])

    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "pytriton infer: the following arguments are required: MODEL. "
        "'pytriton infer --help' lists all options.\n"
    )
