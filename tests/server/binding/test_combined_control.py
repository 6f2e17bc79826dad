# SPDX-License-Identifier: Apache-2.0
"""A server with bound models and models of a repository."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.server.binding.bound_control import BoundControl, CombinedControl
from tests.fakes import FakeClock, FakeLoop, model_spec
from tests.server.control_fakes import ENTRIES, FakeControl


@pytest.fixture
def repository():
    control = FakeControl(*ENTRIES)
    control.finish()
    return control


@pytest.fixture
def bound_model():
    return Model(model_spec(name="double"), FakeLoop(FakeClock()), is_bound=True)


@pytest.fixture
def control(repository, bound_model):
    engine = Engine()
    bound = BoundControl(engine, None)
    engine.add(bound_model)
    bound_model.become(VersionState.UNAVAILABLE, "it broke")
    return CombinedControl(bound, repository, is_explicit=True)


def test_index_lists_both_kinds_and_bound_ones_hide_others(control):
    assert control.index() == [
        ENTRIES[0],
        IndexEntry("double", "1", "UNAVAILABLE", "it broke"),
        ENTRIES[2],
    ]
    assert control.index(ready=True) == []


def test_model_goes_to_who_keeps_it(control, repository):
    asyncio.run(control.load("never", "{}", {"a": b""}))
    asyncio.run(control.unload("never", unload_dependents=True))
    asyncio.run(control.unload("double"))

    assert repository.calls == [("load", "never", "{}", {"a": b""}), ("unload", "never", True)]


def test_repository_refuses_for_all_where_clients_may_not_load(control, repository):
    strict = CombinedControl(control._bound, repository, is_explicit=False)
    asyncio.run(strict.load("double", None, {}))
    asyncio.run(strict.unload("double"))

    assert [call[:2] for call in repository.calls] == [("load", "double"), ("unload", "double")]


def test_both_kinds_have_to_be_ready(control, repository, bound_model):
    assert not control.is_ready()
    bound_model.become(VersionState.LOADING)
    bound_model.become(VersionState.READY)
    assert control.is_ready()

    repository.is_serving = False

    assert not control.is_ready()
