# SPDX-License-Identifier: Apache-2.0
"""The connection of a binding process to its server, whose end a test plays."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytriton.base.documentation import Documentation
from pytriton.binding.server_process import ServerLink
from pytriton.runtime.transport.control import Bind, ControlLink, Unbind
from pytriton.runtime.transport.link import stream_pair

MODEL = SimpleNamespace(
    name="m",
    version=2,
    ray=None,
    message=dict,
    takes_parameters=True,
    documentation=Documentation(),
    nullable=(),
    initial_states=dict,
    open_instances=lambda _: ([], []),
)


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
def test_model_whose_bind_nobody_waits_for_any_more_is_unbound(monkeypatch, error):
    def give_up(*_):
        raise error

    ours, theirs = stream_pair()
    link, server = ServerLink(ours, lambda: None), ControlLink(theirs)
    monkeypatch.setattr(link, "_await_answer", give_up)
    with pytest.raises(error):
        link.bind(MODEL, lambda: None, 60.0)
    link.close()

    received = [server.receive(), server.receive()]
    assert [type(each) for each in received] == [Bind, Unbind]
    assert (received[1].name, received[1].version) == ("m", 2)
    ours.close()
    server.close()
