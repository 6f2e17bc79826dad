# SPDX-License-Identifier: Apache-2.0
"""How a server of the command starts, from its models to its ports."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal

import pytest

from pytriton.base.errors import InternalError, UnavailableError
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.server.command.lifecycle import Exit, LoadProgress, OpenPorts
from pytriton.serving.server.command.run import run
from pytriton.serving.server.command.startup import ProgressLine, log_ports
from pytriton.serving.server.options.server_options import ServerOptions
from tests.server.serving_fakes import FakeServing

PORT_TAKEN = "failed to start HTTP service: Unavailable - Socket '0.0.0.0:8000' already in use "
RESTRICTED = {
    "http_restricted_api": "model-repository:k=v",
    "grpc_restricted_protocol": "health,model-repository:k=v",
}


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self):
        return True


@pytest.fixture
def log(caplog):
    """The messages of the log; those of tables begin with a border."""
    caplog.set_level(logging.INFO, "pytriton")
    return lambda: [record.getMessage() for record in caplog.records]


def serve(serving, **config):
    """Run the command with a server; one that comes up gets a signal."""
    options = ServerOptions.from_triton_config({"model_repository": os.curdir} | config)

    async def scenario():
        running = asyncio.ensure_future(run(options, serving.build, ProgressLine(io.StringIO())))
        listening = asyncio.ensure_future(serving.listening.wait())
        await asyncio.wait({running, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
        return await running

    return asyncio.run(scenario())


def test_server_starts_and_ends_in_order(log, capsys):
    serving = FakeServing()

    assert serve(serving) is Exit.CLEAN
    assert serving.calls == ["build", "load", "open_ports", "begin_exit", "stop 30"]
    assert capsys.readouterr() == ("Signal (15) received.\n", "")


def test_log_shows_tables_and_then_ports(log):
    serve(FakeServing(), http_address="127.0.0.1", grpc_address="127.0.0.2")

    tables, others = log()[:4], log()[4:]
    assert [table.splitlines()[1].split("|")[1].strip() for table in tables] == [
        "Repository Agent",
        "Backend",
        "Model",
        "Option",
    ]
    assert others[:3] == [
        "Started GRPCInferenceService at 127.0.0.2:18001",
        "Started HTTPService at 127.0.0.1:18000",
        "Waiting for in-flight requests to complete.",
    ]


def test_model_that_fails_ends_the_server(log, capsys):
    serving = FakeServing(load_error=InternalError("failed to load all models"))

    assert serve(serving) is Exit.FAILED
    assert serving.calls == ["build", "load", "stop 0"]
    assert len(log()) == 4
    assert capsys.readouterr().err == (
        "error: creating server: Internal - failed to load all models\n"
    )


def test_models_that_fail_are_named_last_with_their_causes(log, capsys):
    serving = FakeServing(load_error=InternalError("failed to load all models"))
    python = "Internal: ValueError: no weights\n\nAt:\n  a/1/model.py(2): g\n  a/1/lib.py(7): f\n"
    serving.index = lambda: [
        IndexEntry("a", "1", "UNAVAILABLE", python),
        IndexEntry("b", "1", "READY"),
        IndexEntry("c", reason="Invalid argument: no such field\nmore"),
        *(IndexEntry(f"n{number}", "2", "UNAVAILABLE", "gone") for number in range(20)),
    ]

    serve(serving)

    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        "Models that cannot be loaded:",
        "  a version 1: Internal: ValueError: no weights, at a/1/model.py(2): g",
        "  c: Invalid argument: no such field",
        "  n0 version 2: gone",
    ]
    assert lines[-2:] == [
        "  and 2 more, which the table of models names",
        "error: creating server: Internal - failed to load all models",
    ]


def test_folder_that_is_no_repository_is_explained(log, tmp_path):
    serving = FakeServing(load_error=InternalError("failed to load all models"))

    serve(serving, model_repository=tmp_path / "none")

    assert log()[-1] == f"Expected a folder of models, but {tmp_path}/none does not exist"


def test_model_that_fails_leaves_the_server_up_where_that_is_asked_for(log):
    serving = FakeServing(load_error=InternalError("failed to load all models"))

    assert serve(serving, exit_on_error=False) is Exit.CLEAN
    assert log()[4] == "Internal: failed to load all models"
    assert "open_ports" in serving.calls


def test_server_that_stays_up_names_the_models_that_fail_after_its_tables(log):
    serving = FakeServing(load_error=InternalError("failed to load all models"))
    python = "Internal: ValueError: no weights\n\nAt:\n  a/1/model.py(2): g\n"
    serving.index = lambda: [IndexEntry("a", "1", "UNAVAILABLE", python)]
    serve(serving, exit_on_error=False)

    assert log()[4:6] == [
        "Internal: failed to load all models",
        "cannot be loaded: a version 1: Internal: ValueError: no weights, at a/1/model.py(2): g",
    ]


def test_port_in_use_ends_the_server(log, capsys):
    serving = FakeServing(port_error=UnavailableError(PORT_TAKEN))

    assert serve(serving) is Exit.FAILED
    assert serving.calls == ["build", "load", "open_ports", "stop 0"]
    assert log()[-2:] == [
        PORT_TAKEN,
        "Stop the program that uses it, or choose another port with --http-port",
    ]
    assert capsys.readouterr().err == ""


def test_server_that_cannot_be_made_ends_with_its_error(log, capsys):
    class Broken(FakeServing):
        async def build(self, options, loop):
            raise InternalError("failed to stat file nope")

    assert serve(Broken()) is Exit.FAILED
    assert capsys.readouterr().err == (
        "error: creating server: Internal - failed to stat file nope\n"
    )


def test_signal_while_models_are_loaded_gives_the_start_up(log):
    class Slow(FakeServing):
        async def load(self, report):
            self.loaded.clear()
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            await super().load(report)

    serving = Slow()

    assert serve(serving) is Exit.CLEAN
    assert serving.calls == ["build", "load", "load cancelled", "begin_exit", "stop 30"]


@pytest.mark.parametrize(
    "config, number_of_warnings",
    [
        ({"model_control_mode": "none"}, 0),
        ({"model_control_mode": "explicit"}, 2),
        ({"model_control_mode": "explicit", "allow_grpc": False}, 1),
        ({"model_control_mode": "explicit", **RESTRICTED}, 0),
        (
            {
                "model_control_mode": "explicit",
                "http_address": "localhost",
                "grpc_address": "::1",
            },
            0,
        ),
    ],
)
def test_control_of_models_that_is_open_to_all_is_warned_about(log, config, number_of_warnings):
    serve(FakeServing(), **config)

    warnings = [message for message in log() if "may load models, and a model is code" in message]
    assert len(warnings) == number_of_warnings


BOTH = "0.0.0.0:8000 or 0.0.0.0:8001"
HEADERS = {
    "http_restricted_api": "inference:k=v",
    "grpc_restricted_protocol": "health,inference:k=v",
}
TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}


@pytest.mark.parametrize(
    "config, places",
    [
        ({}, BOTH),
        ({"http_address": "127.0.0.1"}, "0.0.0.0:8001"),
        ({"http_address": "::", "allow_grpc": False}, ":::8000"),
        ({"http_address": "localhost", "grpc_address": "::1"}, ""),
        ({"auth_config": "auth.toml"}, ""),
        (TLS, BOTH),
        ({**TLS, "tls_client_ca": "ca.pem"}, ""),
        ({**TLS, "tls_client_ca": "ca.pem", "tls_client_auth": "optional"}, BOTH),
        (HEADERS, ""),
        ({**HEADERS, "grpc_restricted_protocol": "health:k=v"}, "0.0.0.0:8001"),
    ],
)
def test_address_for_other_machines_without_a_policy_is_told(log, config, places):
    options = ServerOptions.from_triton_config(config)
    log_ports(OpenPorts(8000, 8001 if options.grpc.allow else 0, 8002), options)

    told = [message for message in log() if "may use the models" in message]
    text = "Whoever reaches {} may use the models: --auth-config says who may do what, and only "
    text += "this machine reaches the address 127.0.0.1"
    assert told == ([text.format(places)] if places else [])


def test_progress_is_one_line_of_a_terminal(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "24")
    stream = Terminal()
    line = ProgressLine(stream)

    line.update(LoadProgress(0, 20, ["a", "b"]))
    line.update(LoadProgress(3, 20, ["long_name", "longer_name"]))
    line.end()
    line.hide()
    line.show()

    assert stream.getvalue().split("\r\x1b[2K") == [
        "[0/20] loading a, b",
        "[3/20] loading long_na…",
        "",
    ]


def test_progress_is_in_the_log_where_there_is_no_terminal(log):
    stream = io.StringIO()
    line = ProgressLine(stream)

    line.log(10.0)
    line.update(LoadProgress(3, 20, ["a", "b"]))
    line.log(20.4)

    assert stream.getvalue() == ""
    assert log() == ["Loaded 3 of 20 models in 20 seconds, waiting for: a, b"]
