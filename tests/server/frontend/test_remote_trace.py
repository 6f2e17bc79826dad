# SPDX-License-Identifier: Apache-2.0
"""Which requests a front end selects for traces, and which it leaves to the core."""

from __future__ import annotations

import pytest

from pytriton.base.messages import TraceOrigin
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


def test_requests_in_columns_are_counted_too():
    rig = Rig(rate=100)
    assert all(rig.tracing.passes("m") for _ in range(99))

    assert not rig.tracing.passes("m")
    assert rig.begin().is_sampled
    assert rig.tracing.passes("m")


@pytest.mark.parametrize("rate", [1, 3])
def test_core_counts_at_low_rates(rate):
    rig = Rig(rate=rate)

    assert not rig.tracing.passes("m")
    assert not rig.begin().is_sampled


@pytest.mark.parametrize("rate", [-1, 0])
def test_nothing_is_selected_without_a_rate(rate):
    rig = Rig(rate=rate)

    assert rig.tracing.passes("m")
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
