# SPDX-License-Identifier: Apache-2.0
"""The server that processes bind models to is not there yet, stops, is killed, and comes back."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.binding import remote_triton
from pytriton.binding.server_process import ServerLink
from pytriton.client.exceptions import PyTritonClientTimeoutError
from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.model_config import Tensor
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.transport import rendezvous
from pytriton.triton import RemoteTriton, Triton, TritonConfig, TritonSecurityConfig
from tests.e2e.binders import SERVE, Binders, server_process
from tests.e2e.http_client import infer, is_port_free, is_ready
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.run_page import thread_is_in

X, Y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "xy")
TOKEN = "a-token"


def ask(port, name="Remote", value=2):
    return infer(port, name, {"x": np.full((1, 1), value, np.float32)})["y"].item()


@pytest.fixture
def server_later(ports):
    """A server that the test runs; its token stays the same."""
    security = TritonSecurityConfig(access_token=TOKEN)
    triton = Triton(config=TritonConfig(**ports), security_config=security)
    yield triton
    triton.stop()


@pytest.fixture
def server(server_later):
    """A server that may be run again."""
    server_later.run()
    return server_later


@pytest.fixture
def remote(ports):
    made = RemoteTriton(f"localhost:{ports['http_port']}", access_token=TOKEN)
    made.bind("Remote", lambda requests: [{"y": 3 * r["x"]} for r in requests], [X], [Y])
    yield made
    made.stop()


@pytest.fixture
def port(ports):
    return ports["http_port"]


def kill(_):
    server_process().kill()


@pytest.mark.parametrize("end", [Triton.stop, kill])
def test_end_of_the_server_ends_serving(server, remote, end):
    serving = threading.Thread(target=remote.serve)
    serving.start()
    assert eventually(remote.is_connected)
    end(server)
    serving.join()

    assert not remote.is_connected()
    assert not remote.is_alive()
    assert not remote.stop()


@pytest.mark.parametrize("end", [Triton.stop, kill])
def test_script_ends_well_when_the_server_does(server, port, start_script, end):
    binder = Binders(start_script, f"localhost:{port}", TOKEN).start_ready()
    end(server)

    assert binder.exit_code() == 0


@pytest.mark.parametrize("end", [Triton.stop, kill])
def test_connection_is_made_again_to_a_server_that_comes_back(server, remote, port, end):
    for _ in range(2):
        remote.connect()
        assert ask(port) == 6
        end(server)
        assert eventually(lambda: not remote.is_connected() and not server.is_alive())
        server.stop()
        server.run()

    remote.connect()
    assert ask(port) == 6


def test_connection_waits_for_the_server(ports, port, start_script):
    binders = Binders(start_script, f"grpc://localhost:{ports['grpc_port']}", TOKEN)
    binder = binders.start("print('1', flush=True)\n" + SERVE)
    assert binder.say() == 1
    security = TritonSecurityConfig(access_token=TOKEN)
    with Triton(config=TritonConfig(**ports), security_config=security):
        assert eventually(lambda: is_ready(port, "Remote"))
        assert ask(port) == 4


def test_waiting_for_the_server_ends_with_stop(remote):
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(remote.connect)
        assert eventually(lambda: remote.stop() or waiting.done())

        with pytest.raises(PyTritonInvalidOperationError, match="stopped while it waited"):
            waiting.result()


def test_waiting_for_the_server_has_an_end(remote, monkeypatch, port):
    monkeypatch.setattr(remote_triton, "DEFAULT_TRITON_STARTUP_TIMEOUT_S", 0.1)
    with pytest.raises(TimeoutError, match=f"no server of this user served localhost:{port}") as e:
        remote.connect()

    assert isinstance(e.value, PyTritonClientTimeoutError)


@pytest.mark.parametrize("moment", ["open", "bind"])
def test_server_that_ends_amid_the_connection_is_waited_for(
    server, remote, port, monkeypatch, moment
):
    do = getattr(ServerLink, moment)

    def end_first(link, *arguments):
        monkeypatch.undo()
        kill(server)
        do(link, *arguments)

    monkeypatch.setattr(ServerLink, moment, end_first)
    with ThreadPoolExecutor(1) as threads:
        connecting = threads.submit(remote.connect)
        assert eventually(lambda: not server.is_alive() or connecting.done())
        server.stop()
        server.run()
        connecting.result()

    assert ask(port) == 6


@pytest.fixture
def ending(ports, port):
    """A server that waits for its last request; set the event to let it go."""
    release, is_busy = threading.Event(), threading.Event()

    def hold(requests):
        is_busy.set()
        release.wait()
        return [{"y": request["x"]} for request in requests]

    security = TritonSecurityConfig(access_token=TOKEN)
    triton = Triton(config=TritonConfig(**ports), security_config=security)
    triton.bind("Slow", hold, [X], [Y])
    triton.run()
    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(ask, port, "Slow")
        assert is_busy.wait(DEADLINE_S)
        stopping = threads.submit(triton.stop)
        assert eventually(lambda: all(is_port_free(each) for each in ports.values()))
        yield release
        release.set()
        assert answer.result() == 2
        stopping.result()


def test_server_that_is_about_to_end_is_waited_for(ending, server_later, remote, port, monkeypatch):
    attempts = []
    connect = rendezvous.connect

    def count_attempts(*arguments):
        attempts.append(arguments)
        return connect(*arguments)

    monkeypatch.setattr(rendezvous, "connect", count_attempts)
    with ThreadPoolExecutor(1) as threads:
        connecting = threads.submit(remote.connect)
        assert eventually(lambda: len(attempts) > 2 or connecting.done())
        assert not connecting.done()
        server_later.run()
        connecting.result()

    assert ask(port) == 6


def test_next_server_takes_models_while_the_last_one_ends(ending, server_later, remote, port):
    server_later.run()
    remote.connect()
    assert ask(port) == 6
    ending.set()

    assert remote.is_alive()


def test_late_end_of_a_connection_does_not_end_the_next_one(server, remote, port, monkeypatch):
    ends = []

    class LateLink(ServerLink):
        def __init__(self, sock, on_end):
            super().__init__(sock, lambda: ends.append(on_end))

    monkeypatch.setattr(remote_triton, "ServerLink", LateLink)
    remote.connect()
    remote.stop()
    remote.connect()
    assert eventually(lambda: ends)
    ends[0]()

    assert remote.is_connected()
    assert ask(port) == 6


def test_connection_is_made_again_only_after_the_end_of_the_last(server, remote, port, monkeypatch):
    is_closing, may_close = threading.Event(), threading.Event()
    order, connectors = [], []
    close = BoundModel.close

    def close_late(model, timeout_s):
        is_closing.set()
        may_close.wait()
        close(model, timeout_s)
        order.append("closed")

    class NotedLink(ServerLink):
        def __init__(self, sock, on_end):
            order.append("connected")
            super().__init__(sock, on_end)

    def connect():
        connectors.append(threading.current_thread())
        remote.connect()

    def is_waiting():
        return connectors and all(thread_is_in(connectors[0], at) for at in ("connect", "wait"))

    remote.connect()
    monkeypatch.setattr(BoundModel, "close", close_late)
    monkeypatch.setattr(remote_triton, "ServerLink", NotedLink)
    with ThreadPoolExecutor(2) as threads:
        stopping = threads.submit(remote.stop)
        assert is_closing.wait(DEADLINE_S)
        assert not remote.is_connected()
        connecting = threads.submit(connect)
        assert eventually(lambda: connecting.done() or is_waiting())
        may_close.set()
        connecting.result()
        assert stopping.result()
    assert order == ["closed", "connected"]

    serving = threading.Thread(target=remote.serve)
    serving.start()
    assert ask(port) == 6
    assert eventually(lambda: thread_is_in(serving, "serve") and thread_is_in(serving, "wait"))
    remote.stop()
    serving.join()


@pytest.mark.parametrize("place", [Triton, RemoteTriton])
def test_models_may_be_bound_while_others_are_looked_at(server, remote, monkeypatch, place):
    triton = server if place is Triton else remote
    triton.connect()
    if place is Triton:
        triton.bind("First", lambda requests: requests, [X], [Y])
    is_alive = BoundModel.is_alive

    def bind_another(model):
        monkeypatch.undo()
        triton.bind("Another", lambda requests: requests, [X], [Y])
        return is_alive(model)

    monkeypatch.setattr(BoundModel, "is_alive", bind_another)

    assert triton.is_alive()
    assert triton.is_alive()


def test_objects_that_are_not_connected_are_forgotten(server, port):
    never = RemoteTriton(f"localhost:{port}", access_token=TOKEN)
    once = RemoteTriton(f"localhost:{port}", access_token=TOKEN)
    with once:
        once.bind("Once", lambda requests: requests, [X], [Y])
    refused = RemoteTriton(f"localhost:{port}", access_token="wrong")
    with pytest.raises(PyTritonRuntimeError):
        refused.connect()
    references = [weakref.ref(each) for each in (never, once, refused)]
    del never, once, refused

    def are_gone():
        gc.collect()
        return all(reference() is None for reference in references)

    assert eventually(are_gone)
