# SPDX-License-Identifier: Apache-2.0
"""Which requests a front end selects for traces, and which it leaves to the core."""

from __future__ import annotations

import pytest

from pytriton.base.messages import ChunkOrigins, TraceOrigin
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.server.frontend.core_link import RemoteTracing
from tests.fakes import RecordingSink, model_spec, request

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Rig:
    def __init__(self, **rates):
        self.change(**rates)
        self.tracing = RemoteTracing(lambda frame: None, self)

    def change(self, rate, **models):
        self.trace_rates = {"": rate, **models}

    def begin(self, name="m", traceparent=""):
        """The origin that the core gets; None if it hears of no trace."""
        origin = TraceOrigin("HTTP", traceparent)
        trace = self.tracing.begin(request(), model_spec(name=name), origin, RecordingSink())
        return None if trace is None else trace.origin


def test_front_end_counts_at_high_rates():
    rig = Rig(rate=100)
    origins = [rig.begin() for _ in range(300)]

    assert [at for at, origin in enumerate(origins, 1) if origin is not None] == [100, 200, 300]
    assert origins[99].is_sampled


ENSEMBLE = model_spec(name="m", platform="ensemble")


class Columns:
    protocol = "GRPC"


class Chunk:
    sink = Columns()

    def __init__(self, count):
        self.callers = [None] * count
        self.model = self
        self.spec = model_spec(name="m")
        self.trace = None


def test_requests_of_ensembles_in_columns_are_counted_too():
    rig = Rig(rate=100)
    assert all(rig.tracing.passes(ENSEMBLE) for _ in range(99))

    assert not rig.tracing.passes(ENSEMBLE)
    assert rig.begin().is_sampled
    assert rig.tracing.passes(ENSEMBLE)


def test_members_of_chunks_are_selected_and_counted():
    rig = Rig(rate=100)
    first, second = Chunk(98), Chunk(3)
    assert rig.tracing.passes(first.spec)
    rig.tracing.observe_chunk(first)
    rig.tracing.observe_chunk(second)

    assert first.trace is None
    assert second.trace.origins == ChunkOrigins("GRPC", [1], [0, 0, 0], is_sampled=True)


def test_member_that_is_submitted_again_keeps_its_origin():
    rig, chunk = Rig(rate=1), Chunk(2)
    rig.tracing.observe_chunk(chunk)
    member = Inference(request(), RecordingSink(), index=1)
    sink = member.sink
    chunk.trace.use_alone(member, chunk.spec)

    assert member.trace.origin == TraceOrigin("GRPC")
    assert member.sink is member.trace
    assert member.sink is not sink


@pytest.mark.parametrize("rate", [1, 3])
def test_core_counts_at_low_rates(rate):
    rig, chunk = Rig(rate=rate), Chunk(2)
    rig.tracing.observe_chunk(chunk)

    assert not rig.tracing.passes(ENSEMBLE)
    assert chunk.trace.origins == ChunkOrigins("GRPC", [0, 1], [0, 0])
    assert not rig.begin().is_sampled


@pytest.mark.parametrize("rate", [-1, 0])
def test_nothing_is_selected_without_a_rate(rate):
    rig, chunk = Rig(rate=rate), Chunk(2)
    rig.tracing.observe_chunk(chunk)

    assert rig.tracing.passes(ENSEMBLE)
    assert chunk.trace is None
    assert rig.begin() is None


def test_request_of_a_client_that_traces_goes_to_the_core_unless_all_is_off():
    rig = Rig(rate=0)
    assert rig.begin(traceparent=PARENT) == TraceOrigin("HTTP", PARENT)

    rig.change(-1)
    assert rig.begin(traceparent=PARENT) is None


def test_models_have_rates_of_their_own():
    rig = Rig(rate=-1, m=64)
    assert rig.begin("other") is None

    assert [at for at in range(1, 129) if rig.begin()] == [64, 128]


def test_registry_without_a_new_rate_changes_nothing():
    rig = Rig(rate=64)
    for _ in range(63):
        rig.begin()
    rig.change(64)
    assert rig.begin() is not None

    rig.begin()
    rig.change(65)
    assert [at for at in range(1, 66) if rig.begin()] == [65]
