# SPDX-License-Identifier: Apache-2.0
"""The life of `Triton` objects: again, twice, in threads, when things go wrong; their files."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest

from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import infer, is_port_free, is_ready
from tests.e2e.scripts import GONE_WITHIN_S, own_servers
from tests.e2e.waiting import DEADLINE_S, eventually

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))
ONE = np.ones((1, 1), np.float32)


def times(factor):
    return lambda requests: [{"y": request["x"] * np.float32(factor)} for request in requests]


others: set[psutil.Process | threading.Thread] = set()  # of fixtures that other tests share


@pytest.fixture(autouse=True)
def _count_others():
    others.clear()
    others.update([*servers(), *pytriton_threads()])


def servers() -> list[psutil.Process]:
    return [server for server in own_servers() if server not in others]


def pytriton_threads() -> list[threading.Thread]:
    threads = set(threading.enumerate()) - others
    return [thread for thread in threads if thread.name.startswith("pytriton-")]


def make(ports, factor=1) -> Triton:
    triton = Triton(config=TritonConfig(**ports))
    triton.bind("Model", times(factor), [X], [Y])
    return triton


def answer(ports) -> float:
    return infer(ports["http_port"], "Model", {"x": ONE})["y"].item()


def test_server_is_ready_when_its_first_models_are(ports):
    ready_while_preparing = []

    def model(requests):
        ready_while_preparing.append(is_ready(ports["http_port"]))
        return [{"y": request["x"]} for request in requests]

    warmup = ModelWarmup(
        "w", 1, {"x": WarmupInput(dtype=np.float32, shape=(1,), zero_data=True)}, 1
    )
    triton = make(ports)
    triton.bind("Slow", model, [X], [Y], config=ModelConfig(model_warmup=[warmup]))
    triton.run()
    try:
        assert set(ready_while_preparing) == {False}
        assert is_ready(ports["http_port"])
    finally:
        triton.stop()


def test_object_runs_again_after_a_stop_on_the_same_ports(ports):
    triton = make(ports, 2)
    for _ in range(3):
        triton.run()
        assert answer(ports) == 2
        assert triton.stop() is True
        assert is_port_free(ports["http_port"])

    assert servers() == []
    assert eventually(lambda: pytriton_threads() == [])


def test_name_may_be_bound_anew_after_a_stop_as_a_notebook_does(ports):
    triton = make(ports, 2)
    triton.run()
    with pytest.raises(PyTritonInvalidOperationError, match="Model"):
        triton.bind("Model", times(3), [X], [Y])
    triton.stop()
    triton.bind("Model", times(3), [X], [Y])
    triton.run()
    try:
        assert answer(ports) == 3
    finally:
        triton.stop()


def test_second_stop_has_nothing_to_do(ports):
    triton = make(ports)
    assert triton.stop() is False
    triton.run()

    assert (triton.stop(), triton.stop()) == (True, False)
    assert not triton.is_alive()
    assert not triton.is_connected()


def test_stop_from_several_threads_stops_once(ports):
    triton = make(ports)
    triton.run()
    results = []
    threads = [threading.Thread(target=lambda: results.append(triton.stop())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert sorted(results) == [False, False, False, True]


def test_run_again_while_running_changes_nothing(ports):
    triton = make(ports)
    triton.run()
    try:
        (server,) = servers()
        triton.run()
        assert [item.pid for item in servers()] == [server.pid]
        assert answer(ports) == 1
    finally:
        triton.stop()


def test_serve_returns_when_the_server_dies(ports):
    triton = make(ports)
    thread = threading.Thread(target=triton.serve)
    thread.start()
    assert eventually(triton.is_connected)  # later than ready over HTTP: `bind` has its answer too
    (server,) = servers()
    server.kill()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()
    assert not triton.is_alive()
    assert triton.stop() is False


def test_object_runs_again_after_its_server_died(ports):
    triton = make(ports)
    triton.run()
    servers()[0].kill()
    assert eventually(lambda: not triton.is_alive())
    assert eventually(lambda: servers() == [])

    triton.run()
    try:
        assert answer(ports) == 1
    finally:
        triton.stop()


# Said before the server counts as ended, and after that.
@pytest.mark.parametrize("said", ["binding.server_process.logger.debug", "triton.logger.error"])
def test_object_runs_again_before_the_end_of_its_server_was_handled(ports, monkeypatch, said):
    is_heard, runs_again = threading.Event(), threading.Event()

    def say_slowly(*_):
        if threading.current_thread() is not threading.main_thread():  # it says the same of a stop
            is_heard.set()
            runs_again.wait(DEADLINE_S)

    triton = make(ports)
    triton.run()
    monkeypatch.setattr(f"pytriton.{said}", say_slowly)
    servers()[0].kill()
    assert is_heard.wait(DEADLINE_S)
    assert eventually(lambda: not triton.is_alive())

    triton.run()
    try:
        assert answer(ports) == 1
    finally:
        runs_again.set()
        triton.stop()


def test_late_word_of_a_servers_end_does_not_stop_the_next_one(ports, monkeypatch):
    is_heard, runs_again = threading.Event(), threading.Event()

    def say_slowly(*_):
        is_heard.set()
        runs_again.wait(DEADLINE_S)

    monkeypatch.setattr("pytriton.triton.logger.error", say_slowly)
    triton = make(ports)
    triton.run()
    (listener,) = (each for each in pytriton_threads() if each.name == "pytriton-control")
    servers()[0].kill()
    assert is_heard.wait(DEADLINE_S)
    triton.stop()
    triton.run()
    try:
        runs_again.set()
        listener.join(DEADLINE_S)

        assert triton.is_alive()
        assert answer(ports) == 1
    finally:
        triton.stop()


def test_exception_in_the_block_passes_through_and_stops_the_server(ports):
    class OwnError(Exception):
        pass

    with pytest.raises(OwnError), make(ports):
        raise OwnError

    assert is_port_free(ports["http_port"])
    assert servers() == []


@pytest.mark.parametrize("which", ["http_port", "grpc_port", "metrics_port"])
def test_port_in_use_is_an_error_that_names_it_and_says_what_to_do(ports, which):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", ports[which]))
        taken.listen()
        triton = make(ports)

        with pytest.raises(
            PyTritonRuntimeError, match=f":{ports[which]}' already in use"
        ) as raised:
            triton.run()

    assert f"TritonConfig({which}=...)" in str(raised.value)
    assert not triton.is_alive()
    assert servers() == []
    triton.run()
    assert answer(ports) == 1
    triton.stop()


def test_ports_that_are_bound_but_not_listening_do_not_matter(ports):
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("0.0.0.0", ports["http_port"]))
        with make(ports):
            assert answer(ports) == 1


def test_model_that_cannot_be_loaded_does_not_spoil_the_object(ports):
    # The server only notices when it is told to load: two inputs have the same name.
    triton = Triton(config=TritonConfig(**ports))
    triton.bind("Good", times(1), [X], [Y])
    triton.bind("Model", times(1), [X, X], [Y])
    with pytest.raises(Exception, match="x"):
        triton.run()
    triton.unbind("Model")
    triton.bind("Model", times(5), [X], [Y])
    triton.run()
    try:
        assert answer(ports) == 5
        assert infer(ports["http_port"], "Good", {"x": ONE})["y"] == 1
        assert triton.is_alive()
    finally:
        triton.stop()


def test_hanging_callable_delays_a_stop_no_longer_than_the_exit_timeout(ports):
    entered, never = threading.Event(), threading.Event()

    def hang(requests):
        entered.set()
        never.wait(DEADLINE_S)
        return [{"y": request["x"]} for request in requests]

    triton = Triton(config=TritonConfig(exit_timeout_secs=1, **ports))
    triton.bind("Model", hang, [X], [Y])
    triton.run()
    failures = []

    def ask():
        try:
            answer(ports)
        except Exception as error:  # noqa: BLE001  whatever the client sees, it sees something
            failures.append(error)

    client = threading.Thread(target=ask)
    client.start()
    assert entered.wait(DEADLINE_S)
    stopper = threading.Thread(target=triton.stop)
    stopper.start()
    try:
        stopper.join(GONE_WITHIN_S)
        assert not stopper.is_alive()
        client.join(DEADLINE_S / 2)
        assert len(failures) == 1
        assert is_port_free(ports["http_port"])
        assert servers() == []
    finally:
        never.set()


def test_request_in_flight_is_answered_before_the_stop(ports):
    entered, released = threading.Event(), threading.Event()

    def wait(requests):
        entered.set()
        released.wait(DEADLINE_S)
        return [{"y": request["x"]} for request in requests]

    triton = Triton(config=TritonConfig(**ports))
    triton.bind("Model", wait, [X], [Y])
    triton.run()
    answers = []
    client = threading.Thread(target=lambda: answers.append(answer(ports)))
    client.start()
    assert entered.wait(DEADLINE_S)
    stopper = threading.Thread(target=triton.stop)
    stopper.start()
    # The server takes no new connections from the moment that it is told to stop.
    assert eventually(lambda: is_port_free(ports["http_port"]))
    released.set()
    client.join(DEADLINE_S)
    stopper.join(DEADLINE_S)

    assert answers == [1]


def test_script_without_a_main_guard_serves(start_script):
    # Everything at module level, imported a second time by nothing: the server never runs it.
    script = start_script(
        """
        print(os.getpid(), flush=True)
        triton = Triton()
        triton.bind("Model", identity, [X], [Y])
        triton.serve()
        """
    ).await_ready()

    assert infer(script.http_port, "Model", {"x": np.ones((1, 1), np.float32)})["y"] == 1
    script.process.send_signal(signal.SIGINT)
    output, _ = script.process.communicate(timeout=DEADLINE_S)
    assert output.splitlines() == [str(script.process.pid).encode()]


def test_users_file_called_like_a_module_of_ours_is_not_taken_for_it(tmp_path, ports):
    for name in ("server.py", "uvloop.py", "msgspec.py", "httptools.py"):
        (tmp_path / name).write_text("raise RuntimeError('the file of the user was imported')")
    source = (
        "import sys; sys.path.remove('')\n"
        "from pytriton.triton import Triton, TritonConfig\n"
        f"with Triton(config=TritonConfig(**{ports!r})) as triton: print(triton.is_alive())\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={**os.environ, "PYTRITON_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stdout == "True\n", result.stderr


def test_given_workspace_is_made_and_removed(ports, tmp_path):
    workspace = tmp_path / "workspace"
    triton = Triton(config=TritonConfig(**ports), workspace=workspace)
    assert workspace.is_dir()
    with pytest.raises(FileExistsError):
        Triton(workspace=workspace)
    triton.run()
    triton.stop()

    assert not pathlib.Path(workspace).exists()
