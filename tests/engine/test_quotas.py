# SPDX-License-Identifier: Apache-2.0
"""Token buckets, requests under way and refusals, by principal and model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.dtypes import BY_NAME
from pytriton.base.errors import ResourceExhaustedError, UnavailableError
from pytriton.base.messages import InferResponse, InferTensor, RequestGroup
from pytriton.base.quotas import PrincipalQuotas, Quota
from pytriton.serving.engine.quotas import (
    Bucket,
    Limit,
    ModelQuotas,
    Quotas,
    RequestGroups,
)
from pytriton.serving.engine.stats import ModelStatistics
from tests.fakes import RecordingSink, inference

S = 1_000_000_000


def model_quotas(quotas: Quotas, name: str = "m") -> ModelQuotas:
    made = ModelQuotas(name, 1, ModelStatistics())
    made.apply(quotas)
    return made


def limited(name: str = "m", principal: str = "alice", **limits) -> ModelQuotas:
    """The quotas of a model for one principal that has one quota."""
    return model_quotas(Quotas({principal: PrincipalQuotas(quotas=(Quota(**limits),))}), name)


def admit(quotas: ModelQuotas, now_ns: int = 0, principal: str = "alice", size: int = 0):
    """Let a request of `size` bytes begin; returns it."""
    tensor = InferTensor("x", BY_NAME["UINT8"], (size,), bytes(size))
    each = inference(RecordingSink(), principal=principal, inputs={"x": tensor})
    quotas.admit(each, now_ns)
    return each


def refused(quotas: ModelQuotas, now_ns: int = 0, **request) -> ResourceExhaustedError:
    with pytest.raises(ResourceExhaustedError) as caught:
        admit(quotas, now_ns, **request)
    return caught.value


def end(each) -> None:
    each.end().on_response(InferResponse("m", "1", "", []), final=True)


# Buckets


@given(
    rate=st.floats(0.1, 1000),
    burst=st.floats(1, 100),
    gaps_ns=st.lists(st.integers(0, S), min_size=1, max_size=200),
)
def test_bucket_gives_no_more_than_rate_and_burst_in_any_window(rate, burst, gaps_ns):
    bucket = Bucket(rate, burst)
    now_ns, taken_ns = 0, []
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        while bucket.level(now_ns) >= 1:
            bucket.spend(1)
            taken_ns.append(now_ns)

    for first, start_ns in enumerate(taken_ns):
        for last in range(first, len(taken_ns)):
            allowed = burst + rate * (taken_ns[last] - start_ns) / 1e9
            assert last - first + 1 <= allowed + 1e-6


@given(rate=st.floats(0.1, 1000), debt=st.floats(0, 10_000))
def test_bucket_has_what_it_needs_after_the_time_that_it_says(rate, debt):
    bucket = Bucket(rate, rate)
    bucket.level(0)
    bucket.spend(rate + debt)
    wait_s = bucket.wait_s(min(1, rate), 0)

    assert bucket.level(int(wait_s * 1e9) + 1) >= min(1, rate) - 1e-6


# Limits


def test_requests_beyond_the_burst_are_refused_until_the_next_is_due():
    quotas = limited(requests_per_s=2, burst=3)
    for _ in range(3):
        admit(quotas)
    error = refused(quotas)

    assert error.retry_after_s == 1
    assert str(error) == (
        "principal 'alice' may have 2 requests per second, 3 at once, and one more came for "
        "models '*'; retry after 1 s"
    )
    admit(quotas, S // 2)
    refused(quotas, S // 2)


def test_burst_is_one_second_of_requests_unless_it_is_set():
    quotas = limited(requests_per_s=4)
    for _ in range(4):
        admit(quotas)

    refused(quotas)


def test_rate_below_one_request_a_second_lets_one_pass_at_a_time():
    quotas = limited(requests_per_s=0.1)
    admit(quotas)

    assert refused(quotas).retry_after_s == 10
    assert refused(quotas, 4 * S).retry_after_s == 6
    admit(quotas, 10 * S)


def test_requests_under_way_are_limited_until_one_ends():
    quotas = limited(concurrent=2)
    first = admit(quotas)
    admit(quotas)
    error = refused(quotas)
    end(first)

    assert error.retry_after_s == 1
    assert "2 requests under way" in str(error)
    admit(quotas)


def test_bytes_beyond_the_rate_are_paid_off_before_the_next_request():
    quotas = limited(bytes_per_s=100)
    admit(quotas, size=350)
    error = refused(quotas, size=7)

    assert error.retry_after_s == 3
    assert "is 250 ahead, and 7 more came" in str(error)
    refused(quotas, 2 * S)
    admit(quotas, 3 * S)


def test_tokens_are_charged_when_the_request_ends():
    quotas = limited(tokens_per_s=10)
    each = admit(quotas)
    each.usage = Usage(5, 25)
    admit(quotas)
    end(each)
    error = refused(quotas)

    assert error.retry_after_s == 3  # the bucket of 10 has 20 less than nothing
    assert "10 tokens per second" in str(error)
    assert quotas.account_of("alice").tokens_in == 5
    assert quotas.account_of("alice").tokens_out == 25


class Usage:
    """The tokens of a request."""

    def __init__(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens


def test_refused_request_uses_up_nothing():
    one = Quota(requests_per_s=1, burst=10)
    two = Quota(concurrent=1)
    quotas = model_quotas(Quotas({"alice": PrincipalQuotas(quotas=(one, two))}))
    first = admit(quotas)
    for _ in range(50):
        refused(quotas)
    end(first)

    for _ in range(9):
        end(admit(quotas))
    refused(quotas)


def part(quotas: ModelQuotas, group: RequestGroup, now_ns: int = 0):
    """Let one request of a group begin; returns it."""
    each = inference(RecordingSink(), principal="alice", inputs={}, group=group)
    quotas.admit(each, now_ns)
    return each


@pytest.mark.parametrize(
    "limits, text",
    [
        ({"requests_per_s": 5, "burst": 5}, "5 at once, and 8 came together"),
        ({"concurrent": 5}, "5 requests under way, and 8 came together"),
    ],
)  # fmt: skip
def test_requests_of_one_client_request_begin_together_or_not_at_all(limits, text):
    quotas = limited(**limits)
    eight = RequestGroup(1, 8, 80)
    for _ in range(8):
        with pytest.raises(ResourceExhaustedError, match=text):
            part(quotas, eight)

    account = quotas.account_of("alice")
    assert (account.requests, account.under_way, account.bytes_in) == (0, 0, 0)
    assert sum(account.refused.values()) == 8
    five = RequestGroup(2, 5, 50)
    begun = [part(quotas, five) for _ in range(5)]
    assert (account.requests, account.under_way, account.bytes_in) == (5, 5, 50)
    refused(quotas)
    for each in begun:
        end(each)
    assert account.under_way == 0


def test_requests_of_a_group_are_not_refused_because_others_came_in_between():
    quotas = limited(requests_per_s=2, burst=2)
    two = RequestGroup(1, 2, 0)
    part(quotas, two)
    refused(quotas)

    part(quotas, two)


def test_groups_of_another_process_are_known_until_their_last_request():
    groups = RequestGroups()
    first = [groups.take(1, 2, 5), groups.take(2, 3, 5)]

    assert groups.take(2, 3, 5) is first[1]
    assert groups.take(1, 2, 5) is first[0]
    assert groups.take(2, 3, 5) is first[1]
    assert groups.take(1, 2, 5) is not first[0]


def test_groups_whose_requests_never_come_are_forgotten():
    groups = RequestGroups()
    for number in range(10_000):
        groups.take(number, 2, 0)

    assert len(groups._open) <= 1024


def test_all_quotas_of_a_principal_count_and_the_longest_wait_is_told():
    quotas = model_quotas(
        Quotas(
            {
                "alice": PrincipalQuotas(
                    quotas=(Quota(requests_per_s=1, burst=1), Quota(requests_per_s=0.01, burst=1))
                )
            }
        )
    )
    admit(quotas)

    assert refused(quotas).retry_after_s == 100


def test_models_of_one_pattern_share_its_bucket():
    quotas = Quotas(
        {"alice": PrincipalQuotas(quotas=(Quota(models=("llm-*", "big"), concurrent=1),))}
    )
    one, two, other = (model_quotas(quotas, name) for name in ("llm-a", "big", "small"))
    admit(one)
    error = refused(two)

    assert "for models 'llm-*', 'big'" in str(error)
    for _ in range(5):
        admit(other)


def test_principals_have_buckets_of_their_own():
    both = PrincipalQuotas(quotas=(Quota(concurrent=1),))
    quotas = model_quotas(Quotas({"alice": both, "bob": both}))
    admit(quotas)
    admit(quotas, principal="bob")

    refused(quotas)
    refused(quotas, principal="bob")


def test_principals_that_are_not_listed_share_the_quotas_of_anybody():
    quotas = limited(principal="", concurrent=2)
    admit(quotas, principal="x")
    admit(quotas, principal="")
    error = refused(quotas, principal="y")

    assert str(error).startswith("clients without a principal may have")
    assert [account.principal for account in quotas._statistics.accounts] == [""]


def test_principal_without_quotas_is_only_counted():
    quotas = model_quotas(Quotas({"alice": PrincipalQuotas()}))
    for _ in range(100):
        admit(quotas, size=3)

    account = quotas.account_of("alice")
    assert (account.requests, account.under_way, account.bytes_in) == (100, 100, 300)


def test_new_quotas_keep_what_was_used_of_those_that_stay():
    kept, changed = Quota(concurrent=1), Quota(requests_per_s=1, burst=1)
    before = Quotas({"alice": PrincipalQuotas(quotas=(kept, changed))})
    quotas = model_quotas(before)
    first = admit(quotas)
    after = Quotas({"alice": PrincipalQuotas(quotas=(kept, Quota(requests_per_s=9)))}, before)
    quotas.apply(after)
    error = refused(quotas)
    end(first)

    assert "1 requests under way" in str(error)
    admit(quotas)


def test_refusals_are_counted_by_limit():
    quotas = limited(requests_per_s=1, burst=1)
    admit(quotas)
    for _ in range(3):
        refused(quotas)

    account = quotas.account_of("alice")
    assert account.refused[Limit.REQUESTS] == 3
    assert account.requests == 1


# Ends


def test_request_that_ends_in_any_way_is_not_under_way():
    quotas = limited(concurrent=1)
    error = UnavailableError("no")
    ways = [
        lambda sink: sink.on_response(None, final=True),
        lambda sink: sink.on_error(error),
        lambda sink: sink.on_refused(error),
    ]
    for way in ways:
        way(admit(quotas).end())

    assert quotas.account_of("alice").under_way == 0


def test_request_goes_on_after_responses_that_are_not_the_last():
    quotas = limited(concurrent=1)
    sink = admit(quotas).sink
    sink.on_response(None, final=False)
    sink.on_error(UnavailableError("one response"), final=False)

    refused(quotas)
    sink.on_response(None, final=True)
    admit(quotas)


def test_request_whose_last_response_is_not_taken_ends_once():
    quotas = limited(concurrent=1)
    each = admit(quotas)
    target = each.sink._sink

    def fail(response, *, final):
        raise OSError("gone")

    target.on_response = fail
    sink = each.end()
    with pytest.raises(OSError, match="gone"):
        sink.on_response(None, final=True)
    sink.on_error(UnavailableError("gone"))

    assert quotas.account_of("alice").under_way == 0


@pytest.mark.parametrize(
    "limits",
    [
        {"requests_per_s": 0},
        {"requests_per_s": -1},
        {"bytes_per_s": float("inf")},
        {"tokens_per_s": float("nan")},
        {"concurrent": 0},
        {"burst": 5},
        {"requests_per_s": 1, "burst": 0.5},
    ],
)
def test_quota_that_nobody_could_keep_is_refused(limits):
    with pytest.raises(ValueError, match="expected"):
        Quota(**limits)


@pytest.mark.parametrize("weight", [0, -1, float("inf")])
def test_weight_without_a_share_is_refused(weight):
    with pytest.raises(ValueError, match="weight"):
        PrincipalQuotas(weight=weight)
