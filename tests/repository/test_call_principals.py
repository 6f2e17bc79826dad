# SPDX-License-Identifier: Apache-2.0
"""Calls of models belong to the principal of the requests that made them, and are not charged."""

from __future__ import annotations

from pytriton.base.quotas import PrincipalQuotas, Quota
from tests.fakes import RecordingSink, request
from tests.repository.calling import World, tensors


def test_call_belongs_to_the_principal_of_its_request_and_is_not_charged():
    world = World()
    outer, inner = world.add("outer"), world.add("inner")
    one = Quota(requests_per_s=0.001, burst=1)
    world.engine.set_quotas({"alice": PrincipalQuotas(quotas=(one,))})
    asked = request(model_name="outer", inputs=tensors(), principal="alice")
    made = world.engine.infer(asked, RecordingSink())
    world.loop.run()
    sink = RecordingSink()
    world.call(made.instance, "inner", sink)
    (instance,) = inner.instances
    (called,) = instance.running[0].inferences
    instance.finish()
    world.loop.run()

    assert called.request.fields.principal == "alice"
    assert not sink.refusals
    assert inner.quotas.account_of("alice").requests == 0
    assert outer.quotas.account_of("alice").requests == 1


def test_call_of_a_batch_of_several_principals_belongs_to_nobody():
    world = World()
    outer = world.add("outer", max_batch_size=4, batches=True, inputs={})
    inner = world.add("inner")
    world.engine.set_quotas({"alice": PrincipalQuotas()})
    for principal in ("alice", "bob"):
        world.engine.infer(request(model_name="outer", principal=principal), RecordingSink())
    world.loop.run()
    world.call(outer.instances[0], "inner", RecordingSink())
    (called,) = inner.instances[0].running[0].inferences

    assert len(outer.instances[0].running[0].inferences) == 2
    assert called.request.fields.principal == ""
