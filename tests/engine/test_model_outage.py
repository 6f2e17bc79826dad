# SPDX-License-Identifier: Apache-2.0
"""A model without instances: requests wait for one as long as its setting says."""

from __future__ import annotations

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.base.model_spec import SequenceSpec
from pytriton.serving.engine.model import VersionState
from pytriton.serving.engine.stats import FailureReason
from tests.column_rig import ColumnScene
from tests.fakes import FakeInstance, FakeSupervisor

LIMIT_S = 5.0
REFUSED = (
    "model 'm' version 1 has had no instance for {} s, and requests wait at most 5 s for one: "
    "instance m_0_0 is gone, its process ended"
)


@pytest.fixture
def lone(scene):
    """Makes scenes with a model whose instances are replaced, by the test; see `Scene`."""

    def make(**settings):
        supervisor = FakeSupervisor(replaces=True)
        return scene(**{"no_instance_timeout_s": LIMIT_S, "supervisor": supervisor, **settings})

    return make


def replace(one):
    instance = FakeInstance("m_0_9", one.model)
    one.model.add_instance(instance)
    one.loop.run()
    return instance


def errors(one):
    return [error.message for sink in one.sinks for error in sink.errors]


@pytest.fixture
def one(lone):
    return lone()


def test_requests_fail_when_there_was_no_instance_for_too_long(one):
    one.instance.die()
    one.submit(1)
    one.loop.advance(4)
    one.submit(1)
    assert errors(one) == []

    one.loop.advance(1)

    assert errors(one) == [REFUSED.format("5.0")] * 2
    assert all(isinstance(sink.errors[0], UnavailableError) for sink in one.sinks)
    assert one.model.statistics.failures[FailureReason.OTHER] == 2
    assert one.model.state is VersionState.READY
    one.check_all_answered()


def test_clients_get_the_first_line_of_the_reason_only(one):
    one.instance.die("On node 'n': it failed\nTraceback: a secret")
    one.submit(1)
    one.loop.advance(5)

    (error,) = errors(one)
    assert error.endswith("for one: instance m_0_0 is gone, On node 'n': it failed")


def test_later_requests_are_refused_at_once_until_there_is_an_instance(one):
    one.instance.die()
    one.loop.advance(7.5)
    with pytest.raises(UnavailableError) as refusal:
        one.submit(1)
    assert refusal.value.message == REFUSED.format("7.5")
    assert not one.model.is_busy

    new = replace(one)
    one.submit(1)
    new.finish()

    assert one.sinks[-1].responses
    assert one.model.is_ready


def test_instance_in_time_executes_what_has_waited(one):
    one.instance.die()
    one.submit(2)
    one.loop.advance(4.9)

    new = replace(one)
    one.loop.advance(10)
    new.finish()

    assert errors(one) == []
    one.check_all_answered()


def test_each_outage_is_measured_from_its_own_begin(one):
    one.instance.die()
    one.loop.advance(4)
    replace(one).die()
    one.submit(1)
    one.loop.advance(4.9)
    assert errors(one) == []

    one.loop.advance(0.1)

    assert len(errors(one)) == 1


def test_model_with_an_instance_left_has_no_deadline(lone):
    one = lone(instances=2)
    one.instances[0].die()
    one.submit(5)
    one.loop.advance(60)

    one.instances[1].finish()
    one.instances[1].finish()

    assert errors(one) == []
    one.check_all_answered()


def test_time_is_measured_from_the_loss_not_from_the_exit(one):
    one.instance.lose()
    one.submit(1)
    one.loop.advance(4)
    one.instance.die()
    one.loop.advance(1)

    assert errors(one) == [REFUSED.format("5.0")]


def test_passive_instance_does_not_count(one):
    passive = FakeInstance("m_0_7", one.model)
    one.model.add_instance(passive, is_passive=True)
    one.instance.die()
    one.submit(1)
    one.loop.advance(5)

    assert len(errors(one)) == 1


def test_words_name_the_last_reason_that_is_known(one):
    one.instance.die()
    one.model.explain_outage("no node has a free GPU")
    one.submit(1)
    one.loop.advance(5)

    assert errors(one)[0].endswith("for one: no node has a free GPU")


def test_without_the_setting_requests_wait_for_any_time(lone):
    one = lone(no_instance_timeout_s=0.0)
    one.instance.die()
    one.submit(1)
    one.loop.advance(10_000)

    assert errors(one) == []
    replace(one).finish()
    one.check_all_answered()


def test_requests_that_were_put_back_do_not_wait_longer(lone):
    one = lone(is_idempotent=True)
    one.submit(2)
    one.instance.die()
    one.loop.advance(5)

    assert errors(one) == [REFUSED.format("5.0")] * 2
    one.check_all_answered()


def test_sequences_that_wait_for_an_instance_end(lone):
    one = lone(batches=False, sequence=SequenceSpec())
    one.instance.die()
    one.submit(1, correlation_id=7, flags=1)
    one.loop.advance(5)

    assert errors(one) == [REFUSED.format("5.0")]
    new = replace(one)
    one.submit(1, correlation_id=7, flags=1)
    new.finish()
    assert one.sinks[-1].responses


def test_model_that_is_stopped_has_no_deadline_any_more(one):
    one.instance.die()
    one.submit(1)

    one.model.stop()
    one.loop.advance(60)

    assert len(errors(one)) == 1
    assert "is not at ready state" in errors(one)[0]


def test_chunk_is_refused_as_a_whole(clock):
    one = ColumnScene(clock, no_instance_timeout_s=LIMIT_S)
    one.model._supervisor = FakeSupervisor(replaces=True)
    one.instance.die()
    one.loop.advance(6)

    chunk = one.submit_chunk([1, 1])

    assert one.ends.of(chunk) == [("refused", REFUSED.format("6.0"))] * 2
    assert one.model.statistics.pending_count == 0
