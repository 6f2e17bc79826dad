# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.errors import InvalidArgumentError
from pytriton.server.tracing import TraceSampling

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def sampling(*settings: str) -> TraceSampling:
    chosen = TraceSampling.from_settings(["mode=opentelemetry", *settings])
    assert chosen is not None
    return chosen


@pytest.mark.parametrize(
    "settings", [[], ["mode=triton", "rate=1"], ["mode=opentelemetry", "level=OFF"]]
)
def test_nothing_is_traced_unless_opentelemetry_is_asked_for(settings):
    assert TraceSampling.from_settings(settings) is None


@pytest.mark.parametrize("name", [b"traceparent", b"TraceParent"])
def test_request_of_a_client_that_traces_is_traced_under_its_span(name):
    headers = [(b"host", b"x"), (name, PARENT.encode())]

    assert sampling("rate=0", "count=0").traceparent(headers) == PARENT


def test_every_nth_of_the_other_requests_is_traced():
    chosen = sampling("rate=3")

    assert [chosen.traceparent([]) for _ in range(6)] == [None, None, "", None, None, ""]


def test_rate_zero_traces_no_other_request():
    chosen = sampling("rate=0")

    assert [chosen.traceparent([]) for _ in range(3)] == [None] * 3


def test_count_limits_the_other_requests():
    chosen = sampling("rate=1", "count=2")

    assert [chosen.traceparent([]) for _ in range(4)] == ["", "", None, None]


def test_rate_that_is_no_number_is_refused():
    with pytest.raises(InvalidArgumentError, match="'rate', got 'often'"):
        sampling("rate=often")
