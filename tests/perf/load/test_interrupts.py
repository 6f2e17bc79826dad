# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C: the first ends after the requests under way, the second at once."""

from __future__ import annotations

import socket

import pytest

from pytriton.tools.perf.load import process_load, recipe
from pytriton.tools.perf.load.plan import Concurrency, LoadProtocol
from pytriton.tools.perf.load.process_load import ProcessLoad
from tests.perf.load.rig import plan_for


@pytest.mark.parametrize("protocol", list(LoadProtocol))
def test_second_interrupt_gives_up_what_is_under_way(protocol, monkeypatch):
    """The server never answers, so that the first interrupt alone would wait for ever."""

    def interrupt(_inbox):
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as silent:
        load = ProcessLoad(plan_for(f"127.0.0.1:{silent.getsockname()[1]}", protocol))
        load.start(Concurrency(2))
        with monkeypatch.context() as patched:
            patched.setattr(process_load, "_ANSWERS_TIMEOUT_S", 0.0)
            patched.setattr(recipe.LoadMessageInbox, "receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                load.stop()
        records = load.stop(at_once=True)

    assert len(records) == 0
    assert load._workers == []


@pytest.mark.parametrize("protocol", list(LoadProtocol))
def test_server_that_hangs_does_not_keep_a_load_from_its_end(protocol, monkeypatch):
    monkeypatch.setattr(process_load, "_ANSWERS_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        load = ProcessLoad(plan_for(f"127.0.0.1:{silent.getsockname()[1]}", protocol))
        load.start(Concurrency(2))
        records = load.stop()

    assert len(records) == 0
    assert load._workers == []
