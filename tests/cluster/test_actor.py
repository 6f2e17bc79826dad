# SPDX-License-Identifier: Apache-2.0
"""The actor around an instance's process, without a cluster."""

from __future__ import annotations

import asyncio
import types

import pytest

actor = pytest.importorskip("pytriton.runtime.cluster.actor", reason="Ray is not installed")


@pytest.fixture
def shell(monkeypatch):
    context = types.SimpleNamespace(get_node_id=lambda: "n1")
    monkeypatch.setattr(actor.ray, "get_runtime_context", lambda: context)
    made = actor.ActorShell()
    yield made
    made._deadline.cancel()


def test_actor_whose_process_cannot_be_started_keeps_its_deadline(shell):
    pid, reason = asyncio.run(shell.start("no order", 0, {}))

    assert pid == 0
    assert "JSON" in reason
    assert shell._deadline.is_alive()


def test_node_may_have_an_address_that_only_others_see(shell, monkeypatch):
    monkeypatch.setattr(actor.ray.util, "get_node_ip_address", lambda: "192.0.2.1")

    _, node_id, address, port = asyncio.run(shell.where())

    assert (node_id, address) == ("n1", "192.0.2.1")
    assert port > 0
