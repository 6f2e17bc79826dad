# SPDX-License-Identifier: Apache-2.0
"""Quotas of principals: the same for front ends in the engine's process and in others."""

from __future__ import annotations

import json

import pytest

from pytriton.base.errors import ResourceExhaustedError, UnavailableError
from pytriton.base.messages import RequestFields
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.base.quotas import PrincipalQuotas, Quota
from pytriton.serving.engine.quotas import Limit
from pytriton.serving.server.http import columns as http_columns
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.options.server_options import ServerOptions
from tests.contract.seam import doubled
from tests.server.http_fakes import Client, post

PRINCIPAL = b"x-test-principal"


def limit(seam, principal: str = "alice", **limits) -> None:
    seam.engine.set_quotas({principal: PrincipalQuotas(quotas=(Quota(**limits),))})


def account(seam, principal: str = "alice"):
    """What a principal has used of the only model."""
    (model,) = seam.engine.models()
    return model.quotas.account_of(principal)


def test_request_beyond_its_quota_is_refused_with_when_to_try_again(seam):
    _, (instance,) = seam.doubling()
    limit(seam, requests_per_s=0.01, burst=1)
    first, second = (seam.infer([1, 2], principal="alice") for _ in range(2))
    other = seam.infer([3, 4], principal="bob")
    seam.run()
    seam.finish(instance)

    (error,) = second.sink.refusals
    assert type(error) is ResourceExhaustedError
    assert 90 < error.retry_after_s <= 100
    assert "principal 'alice' may have 0.01 requests per second" in error.message
    assert first.values == doubled([1, 2])
    assert other.values == doubled([3, 4])


@pytest.mark.parametrize("joined", [True, False])
def test_first_members_of_a_chunk_pass_up_to_the_quota(seam, joined):
    _, (instance,) = seam.doubling(max_batch_size=16)
    limit(seam, requests_per_s=0.01, burst=3)
    values = [[number, number] for number in range(5)]
    chunk, members = seam.chunk(values, details=[{"principal": "alice"}] * 5, joined=joined)
    seam.run()
    seam.finish(instance)

    ends = seam.ends.of(chunk)
    assert ends[:3] == [doubled(each) for each in values[:3]]
    assert [end[0] for end in ends[3:]] == ["refused"] * 2
    assert all(member.is_over for member in members)
    assert account(seam).under_way == 0
    assert account(seam).refused[Limit.REQUESTS] == 2


def test_members_of_a_chunk_are_charged_to_their_own_principals(seam):
    _, (instance,) = seam.doubling(max_batch_size=16)
    limit(seam, concurrent=1)
    values = [[number, number] for number in range(6)]
    details = [{"principal": name} for name in ("alice", "bob", "alice", "", "bob", "alice")]
    chunk, _ = seam.chunk(values, details=details)
    seam.run()
    seam.finish(instance)

    ends = seam.ends.of(chunk)
    refused = [index for index, end in enumerate(ends) if isinstance(end, tuple)]
    assert refused == [2, 5]
    assert account(seam).bytes_in == 16
    assert account(seam, "").bytes_in == 3 * 16
    assert account(seam).bytes_out == 16
    assert account(seam, "").bytes_out == 3 * 16


def test_chunk_that_is_refused_as_a_whole_leaves_nothing(seam):
    _, (instance,) = seam.doubling()
    limit(seam, requests_per_s=0.01, burst=1)
    seam.infer([1, 2], principal="alice")
    seam.run()
    chunk, _ = seam.chunk([[1, 2], [3, 4]], details=[{"principal": "alice"}] * 2)
    seam.run()
    seam.finish(instance)

    assert {end[0] for end in seam.ends.of(chunk)} == {"refused"}
    assert not chunk.members or all(member.is_over for member in chunk.members)


def test_principal_is_limited_over_both_front_ends(seam):
    if not seam.is_remote:
        pytest.skip("there is one front end")
    _, (instance,) = seam.doubling(max_batch_size=64)
    limit(seam, requests_per_s=0.01, burst=10)
    seam.add_front_end()
    seam.run()
    calls = []
    for number in range(20):
        seam.client = seam.front_ends[number % 2].client
        calls.append(seam.infer([1, 2], principal="alice"))
    seam.run()
    seam.finish(instance)

    assert sum(bool(call.sink.refusals) for call in calls) == 10


def test_bytes_of_members_count(seam):
    _, (instance,) = seam.doubling()
    limit(seam, bytes_per_s=20)
    chunk, _ = seam.chunk([[1, 2], [3, 4], [5, 6]], details=[{"principal": "alice"}] * 3)
    seam.run()
    seam.finish(instance)

    ends = seam.ends.of(chunk)
    assert [isinstance(end, tuple) for end in ends] == [False, False, True]  # 16 bytes each
    assert "20 bytes of inputs per second" in ends[2][1]


def test_quotas_end_with_those_who_set_them(seam):
    _, (instance,) = seam.doubling()
    limit(seam, requests_per_s=0.01, burst=1)
    first = seam.infer([1, 2], principal="alice")
    seam.engine.set_quotas({})
    second = seam.infer([3, 4], principal="alice")
    seam.run()
    seam.finish(instance)

    assert first.values == doubled([1, 2])
    assert second.values == doubled([3, 4])


def test_model_that_is_loaded_later_has_the_quotas(seam):
    limit(seam, concurrent=1)
    model, instance = seam.faked()
    calls = [seam.infer(principal="alice") for _ in range(2)]
    seam.run()
    instance.finish()
    seam.run()

    assert model.quotas is not None
    assert [bool(call.sink.refusals) for call in calls] == [False, True]


# Ends


def under_way(seam, model) -> int:
    states = model.quotas.account_of("alice")._states
    assert {state.under_way for state in states} == {model.quotas.account_of("alice").under_way}
    return model.quotas.account_of("alice").under_way


@pytest.mark.parametrize("is_chunk", [False, True])
@pytest.mark.parametrize("way", ["answer", "error", "cancel", "lost", "unload", "queue is full"])
def test_requests_are_not_under_way_after_any_end(seam, way, is_chunk):
    policy = QueuePolicySpec(max_queue_size=2 if way == "queue is full" else 0)
    batcher = BatcherSpec(default_queue_policy=policy)
    model, instance = seam.faked(max_batch_size=1, batcher=batcher)
    limit(seam, concurrent=100)
    inferences = []
    for _ in range(3 if is_chunk else 6):
        if is_chunk:
            inferences += seam.chunk([[1, 2]] * 2, details=[{"principal": "alice"}] * 2)[1]
        else:
            inferences.append(seam.infer(principal="alice").inference)
        seam.run()
    before = under_way(seam, model)
    if way == "cancel":
        for each in inferences:
            each.cancel()
        seam.run()
    elif way == "lost":
        instance.die()
    elif way == "unload":
        model.stop()
    seam.run()
    while instance.running:
        if way == "error":
            instance.fail()
        else:
            instance.finish()
        seam.run()

    assert before == (3 if way == "queue is full" else 6)
    assert under_way(seam, model) == 0
    assert all(each.is_over for each in inferences)


def test_requests_of_a_front_end_that_is_lost_are_not_under_way(seam):
    if not seam.is_remote:
        pytest.skip("it is in the same process")
    model, instance = seam.faked(max_batch_size=1)
    limit(seam, concurrent=100)
    lost = seam.add_front_end()
    seam.run()
    seam.client = lost.client
    for _ in range(3):
        seam.infer(principal="alice")
    seam.chunk([[1, 2]] * 3, details=[{"principal": "alice"}] * 3)
    seam.run()
    before = under_way(seam, model)
    lost.session.close()
    seam.run()
    while instance.running:
        instance.finish()
        seam.run()

    assert before == 6
    assert under_way(seam, model) == 0
    seam.front_ends.remove(lost)
    lost.close()


def test_members_whose_answers_are_not_taken_end_once(seam):
    if seam.is_remote:
        pytest.skip("a front end takes the answers for its clients")
    model, (instance,) = seam.doubling()
    limit(seam, concurrent=100)
    seam.ends.failure = UnavailableError("no memory")
    chunk, _ = seam.chunk([[1, 2], [3, 4]], details=[{"principal": "alice"}] * 2)
    seam.run()
    seam.finish(instance)

    assert [end[0] for end in seam.ends.of(chunk)] == ["failed"] * 2
    assert under_way(seam, model) == 0


# Shares


def test_flood_in_front_of_the_queue_does_not_hide_others(seam):
    _, instance = seam.faked(max_batch_size=4)
    seam.engine.set_quotas({"flood": PrincipalQuotas(), "bob": PrincipalQuotas()})
    for _ in range(5):
        seam.chunk([[1, 2]] * 200, details=[{"principal": "flood"}] * 200)
    bobs = [seam.infer(principal="bob") for _ in range(2)]
    seam.run()
    for _ in range(2):
        instance.finish()
        seam.run()

    assert all(call.is_over for call in bobs)
    while instance.running:
        instance.finish()
        seam.run()


def test_model_counts_the_time_in_the_queue_by_principal(seam):
    _, (instance,) = seam.doubling()
    seam.engine.set_quotas({"alice": PrincipalQuotas()})
    seam.infer([1, 2], principal="alice")
    seam.run()
    seam.finish(instance)

    assert account(seam).queue_ns > 0
    assert account(seam, "").queue_ns == 0


# HTTP


class NamingApi(HttpApi):
    """Takes the principal from a header, as authentication will find it."""

    def _resolve(self, connection, head):
        resolved = super()._resolve(connection, head)
        if resolved is not None:
            resolved.principal = head.headers.get(PRINCIPAL, b"").decode()
        return resolved


def ask(principal: str, rows: int = 1) -> bytes:
    tensor = {"shape": [rows, 2], "datatype": "INT32", "data": [rows] * 2 * rows}
    body = json.dumps({"inputs": [{"name": name, **tensor} for name in "xy"]}).encode()
    line = b"%b: %b" % (PRINCIPAL, principal.encode())
    return post(body, b"/v2/models/m/infer", line)


@pytest.mark.parametrize("is_learned", [False, True])
def test_http_requests_have_their_principal_in_every_way(seam, monkeypatch, is_learned):
    monkeypatch.setattr(http_columns, "LEARNED_AFTER", 1 if is_learned else 1000)
    _, (instance,) = seam.doubling(max_batch_size=64)
    seam.engine.set_quotas({"alice": PrincipalQuotas(), "bob": PrincipalQuotas()})
    api = NamingApi(seam.client, ServerOptions(), seam.loop)
    clients = {name: [Client(api) for _ in range(3)] for name in ("alice", "bob")}
    for _ in range(6):
        for name, connections in clients.items():
            for client in connections:
                client.send(ask(name))
        seam.run()
        seam.finish(instance)

    for connections in clients.values():
        assert [client.statuses() for client in connections] == [[200] * 6] * 3
    assert account(seam, "alice").requests == 18
    assert account(seam, "bob").requests == 18
    (model,) = seam.engine.models()
    assert (model.statistics.paths[1] > 0) is is_learned  # columns


@pytest.mark.parametrize("is_learned", [False, True])
def test_http_refusal_says_when_to_try_again(seam, monkeypatch, is_learned):
    monkeypatch.setattr(http_columns, "LEARNED_AFTER", 1 if is_learned else 1000)
    _, (instance,) = seam.doubling(max_batch_size=64)
    limit(seam, requests_per_s=0.1, burst=8)
    api = NamingApi(seam.client, ServerOptions(), seam.loop)
    clients = [Client(api) for _ in range(4)]
    for _ in range(3):
        for client in clients:
            client.send(ask("alice"))
        seam.run()
        seam.finish(instance)

    answers = [client.answers() for client in clients]
    assert [answer.status for each in answers for answer in each].count(429) == 4
    refusals = [answer for each in answers for answer in each if answer.status == 429]
    assert {answer.headers[b"Retry-After"] for answer in refusals} <= {b"10", b"9"}
    assert "principal 'alice'" in json.loads(refusals[0].body)["error"]


def test_fields_keep_their_values_beside_a_principal():
    fields = RequestFields("id", {"a": 1}, 2, 3, 4, 5)

    assert fields.with_principal("alice") == RequestFields("id", {"a": 1}, 2, 3, 4, 5, "alice")
    assert RequestFields().with_principal("alice").principal == "alice"
