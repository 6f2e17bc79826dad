# SPDX-License-Identifier: Apache-2.0
"""How `pytriton serve --reload` ends its children, with stand-ins for them and for the server."""

from __future__ import annotations

import threading

import pytest

from pytriton.tools.commands.serve import reloading
from pytriton.tools.commands.serve.options import read_options
from pytriton.tools.commands.serve.reloading import Reloader
from pytriton.tools.commands.serve.servers import ServeScreen


class FakeChild:
    def __init__(self):
        self.ended = ""

    def start(self, *_, **__):
        pass

    def end(self, _timeout_s):
        self.ended = "in order"

    def abandon(self):
        self.ended = "at once"


class FakeServer:
    addresses = None

    def __init__(self, error):
        self._error = error

    def stop(self):
        if self._error:
            raise self._error


@pytest.fixture
def end(monkeypatch):
    child = FakeChild()
    monkeypatch.setattr(reloading, "CodeProcess", lambda: child)

    def run(error):
        stopped = threading.Event()
        stopped.set()
        Reloader(read_options(["m.py", "--reload"]), FakeServer(error), ServeScreen()).run(stopped)

    return child, run


def test_children_end_in_order_after_the_server(end):
    child, run = end

    run(None)

    assert child.ended == "in order"


def test_children_end_at_once_if_the_user_does_not_wait_for_the_server(end):
    child, run = end

    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())

    assert child.ended == "at once"
