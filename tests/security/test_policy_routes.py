# SPDX-License-Identifier: Apache-2.0
"""A policy decides on every route and method of every port; none is forgotten, and none lets in.

The lists of routes are checked against the tables of the source, so that a new route fails here.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import random

import grpc
import pytest

from pytriton.client.kserve.address import parse_address
from pytriton.serving.server.cloud import sagemaker, vertex_ai
from pytriton.serving.server.http import routes
from pytriton.serving.server.landing import api as landing_api
from pytriton.serving.server.openai import api as openai_api
from pytriton.serving.server.operations.table import OPERATIONS
from pytriton.serving.server.page import routes as page_routes
from pytriton.tools.commands.own_server import ask_own_server, own_headers
from tests.access_policies import PolicyFolder, TokenMaker, wrong_credentials
from tests.e2e.http2_client import Http2Session
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import free_ports
from tests.security.hostile import REPOSITORY, ROUTES_OF_VERTEX_AI, grpc_request
from tests.security.policy_routes import (
    CALLS,
    KSERVE,
    LANDING,
    METRICS,
    OPENAI,
    POLICY,
    ROUTES,
    SAGEMAKER,
    SECRET_MODEL,
    SERVICE,
    Answers,
    GrpcRoute,
    KeptConnections,
    end_call,
    endpoints_in,
    start_call,
)
from tests.server.grpc_fakes import GrpcClient

# How many requests with wrong credentials all ports get.
COUNT = int(os.environ.get("PYTRITON_WRONG_CREDENTIALS", "2000"))
HTTP_COUNT = COUNT * 3 // 4
# The second if too many wrong signatures came to look at this one as well.
REFUSED = {401, 429}
REFUSED_CODES = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.fixture(scope="module")
def issuer():
    return TokenMaker()


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two front ends"])
def policed(request, start_module_server, tmp_path_factory, issuer):
    """A server with all its ports and a policy."""
    place = tmp_path_factory.mktemp("policy")
    folder = PolicyFolder(place, POLICY)
    (place / "jwks.json").write_text(issuer.jwks())
    sagemaker_port, vertex_ai_port = free_ports(2)
    flags = (
        f"--auth-config={folder.path}",
        "--allow-sagemaker=true",
        f"--sagemaker-port={sagemaker_port}",
        "--allow-vertex-ai=true",
        f"--vertex-ai-port={vertex_ai_port}",
        "--vertex-ai-default-model=echo",
        "--landing-page=all",
        f"--frontend-processes={request.param}",
    )
    models = {name: REPOSITORY[name] for name in ("echo", "chat", "turns")}
    environment = {**ROUTES_OF_VERTEX_AI, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "echo"}
    running = start_module_server(models, flags, **environment).await_ports()
    running.policy = folder
    running.known_headers = {}
    running.every_port = {
        "http": running.http_port,
        "metrics": running.metrics_port,
        "sagemaker": sagemaker_port,
        "vertex_ai": vertex_ai_port,
    }
    return running


@pytest.fixture
def client(policed):
    connections = KeptConnections(policed.every_port)
    yield connections
    connections.close()


@pytest.fixture
def channel(policed):
    with grpc.insecure_channel(f"127.0.0.1:{policed.grpc_port}") as opened:
        yield opened


def use_key(policed, principal, *, is_new=False):
    """The headers with a key of a principal that the server knows already."""
    if is_new or principal not in policed.known_headers:
        headers = {"x-api-key": policed.policy.key(principal)}
        client = KeptConnections(policed.every_port)
        # Of both front ends, as each connection is to another one.
        for _ in range(2):
            assert eventually(lambda: client.ask(KSERVE[0], headers)[0] != 401)
            client.close()
        if is_new:
            return headers
        policed.known_headers[principal] = headers
    return policed.known_headers[principal]


# No route is forgotten


@pytest.mark.parametrize(
    "module,listed",
    [(openai_api, OPENAI), (landing_api, LANDING), (sagemaker, SAGEMAKER)],
    ids=["openai", "landing", "sagemaker"],
)
def test_lists_have_every_route_of_a_module(module, listed):
    known = {(endpoint.handler, endpoint.api) for endpoint in endpoints_in(module)}
    paths = [route.path.encode() for route in listed]

    assert len(known) > 3 or module is sagemaker
    if module is openai_api:
        assert set(openai_api._ENDPOINTS) <= set(paths)
    elif module is landing_api:
        assert set(landing_api._ENDPOINTS) <= set(paths)
    else:
        assert {handler for handler, _ in known} == {"model", "models"}


def test_list_has_every_path_of_operations_and_inference():
    found = {routes.resolve(route.path.encode()).endpoint.handler for route in KSERVE}
    operations = [each for each in OPERATIONS if each.http is not None]

    assert found == {each.name for each in operations} | routes.INFERENCES
    assert len(KSERVE) >= sum(len(each.http.paths) for each in operations)


def test_list_has_every_path_of_the_page():
    paths = {route.path.encode() for route in METRICS}
    forwarded = {page_routes.find(path).name for path in paths if b"/v2/" in path}

    assert set(page_routes._FIXED) <= paths
    assert forwarded == page_routes._READ | page_routes._ACT


def test_list_has_every_path_of_vertex_ai():
    names = {endpoint.handler for endpoint in endpoints_in(vertex_ai)}

    assert names == {"metrics", "predict"}


def test_list_has_every_method_of_grpc():
    methods = set(GrpcClient().api._methods)

    assert {route.path for route in CALLS} == methods
    assert {path.removeprefix(SERVICE) for path in methods if path.startswith(SERVICE)} == {
        *(each.grpc.method for each in OPERATIONS if each.grpc is not None),
        "ModelInfer",
        "ModelStreamInfer",
    }


# Every route, with every kind of sender


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_route_answers_only_those_with_the_right(policed, client, route):
    is_open = route.answers is Answers.OPEN
    is_health = route.answers is Answers.HEALTH
    wrong = {"authorization": "Bearer ptk_000000000000_" + "A" * 43}
    nothing, others = use_key(policed, "nothing"), use_key(policed, "others")

    none_status, _, challenge = client.ask(route, {})
    wrong_status, _, _ = client.ask(route, wrong)
    nothing_status, nothing_body, _ = client.ask(route, nothing)
    others_status, others_body, _ = client.ask(route, others)

    assert none_status not in (401, 403) if is_open or is_health else none_status == 401
    assert challenge == ("" if is_open or is_health else "Bearer")
    assert wrong_status not in (401, 403) if is_open else wrong_status == 401
    assert nothing_status not in (401, 403) if is_open else nothing_status == 403
    if not is_open and b"right" in nothing_body:
        assert b"nothing has no right to" in nothing_body
    if route.answers in (Answers.MODEL, Answers.ALL):
        assert others_status == 403
    else:
        assert others_status not in (401, 403)
    if route.answers is Answers.FILTERED:
        assert SECRET_MODEL.encode() not in others_body
        assert b"chat" not in others_body.replace(b"/v1/chat", b"")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_route_answers_who_has_all_rights(policed, client, route):
    status, _, _ = client.ask(route, use_key(policed, "everything"))

    assert status not in (401, 403, 429)


@pytest.mark.parametrize("port", ["http", "metrics", "sagemaker", "vertex_ai"])
def test_http2_is_no_way_around_the_policy(policed, issuer, port):
    headers = list(wrong_credentials(policed.policy, issuer).values())
    nothing = use_key(policed, "nothing")
    listed = [route for route in ROUTES if route.port == port and route.answers is not Answers.OPEN]
    share = min(
        5, len(listed)
    )  # each credential goes to one route in five, and all routes get some
    pairs = [
        (route, credential)
        for number, route in enumerate(listed)
        for credential in headers[number % share :: share]
    ]
    with Http2Session(policed.every_port[port]) as session:

        def begin(route, credential):
            given = {**dict(route.headers), **credential}
            return session.begin(route.path, route.body, given, route.method)

        wrong = [begin(route, credential) for route, credential in pairs]
        without = [begin(route, {}) for route in listed if route.answers is not Answers.HEALTH]
        powerless = [begin(route, nothing) for route in listed]
        session.await_all()

    def statuses(streams):
        return {session.answers[stream_id].status for stream_id in streams}

    assert not session.is_closed
    assert 401 in statuses(wrong) <= REFUSED
    assert statuses(without) == {401}
    assert statuses(powerless) == {403}


@pytest.mark.parametrize("route", CALLS, ids=lambda route: f"{route.path} {route.answers.name}")
def test_call_answers_only_those_with_the_right(policed, channel, route):
    is_health = route.answers is Answers.HEALTH
    wrong = {"authorization": "Bearer ptk_000000000000_" + "A" * 43}
    nothing, others = use_key(policed, "nothing"), use_key(policed, "others")

    def ask(metadata):
        return end_call(route, start_call(channel, route, metadata))

    status = grpc.StatusCode
    refused = {status.UNAUTHENTICATED, status.PERMISSION_DENIED}
    others_status, others_messages = ask(others)

    assert ask({})[0] is (status.OK if is_health else status.UNAUTHENTICATED)
    assert ask(wrong)[0] is status.UNAUTHENTICATED
    assert ask(nothing)[0] is status.PERMISSION_DENIED
    assert ask(use_key(policed, "everything"))[0] not in refused
    if route.path.endswith("ModelStreamInfer"):  # the stream goes on, with an error for each
        assert others_status is status.OK
        assert b"others has no right to inference of the model 'echo'" in others_messages
    elif route.answers in (Answers.MODEL, Answers.ALL):
        assert others_status is status.PERMISSION_DENIED
    else:
        assert others_status not in refused
    if route.answers is Answers.FILTERED:
        assert SECRET_MODEL.encode() not in others_messages


def test_token_is_let_in_as_its_principal(policed, client, channel, issuer):
    (infer,) = [route for route in KSERVE if route.path == "/v2/models/echo/infer"]
    admin = {"authorization": f"Bearer {issuer.token('admin@example.com')}"}
    alice = {"authorization": f"Bearer {issuer.token('alice@example.com')}"}
    model_infer = CALLS[-2]

    assert client.ask(infer, admin)[0] == 200
    assert client.ask(infer, alice)[0] == 403
    assert end_call(model_infer, start_call(channel, model_infer, admin))[0] is grpc.StatusCode.OK


# None is let in


def test_no_request_of_thousands_with_wrong_credentials_is_let_in(policed, client, issuer):
    """Over every port and route, on kept connections, with credentials of every kind."""
    headers = list(wrong_credentials(policed.policy, issuer).values())
    closed = [route for route in ROUTES if route.answers is not Answers.OPEN]
    # The newest of these keys are known before any is sent.
    good = use_key(policed, "everything", is_new=True)
    assert client.ask(KSERVE[0], good)[0] == 200

    statuses = asyncio.run(_flood_http(policed.every_port, closed, headers, HTTP_COUNT))
    codes = _flood_grpc(policed.grpc_port, headers, COUNT - HTTP_COUNT)

    assert sum(statuses.values()) + sum(codes.values()) == COUNT
    assert statuses.keys() <= REFUSED
    assert codes.keys() <= REFUSED_CODES
    # Few of the credentials have a signature to look at.
    assert statuses[401] > 0.9 * HTTP_COUNT
    assert codes[grpc.StatusCode.UNAUTHENTICATED] > 0.9 * (COUNT - HTTP_COUNT)
    assert client.ask(KSERVE[0], good)[0] == 200
    values = [value for each in headers for value in each.values() if len(value) > 60]
    assert not [value for value in values if value[-30:] in policed.output]


def _mixed(routes, headers, count):
    """So many pairs, of which a few hundred have all routes and all credentials."""
    pairs = list(itertools.product(routes, headers))
    random.Random(0).shuffle(pairs)
    return itertools.islice(itertools.cycle(pairs), count)


async def _flood_http(ports, closed, headers, count):
    """Send requests over some kept connections to each port; the number of each status."""
    found = collections.Counter()
    jobs = collections.defaultdict(list)
    for number, (route, credential) in enumerate(_mixed(closed, headers, count)):
        jobs[route.port, number % 3].append((route, credential))

    async def run(port, requests):
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[port])
        for route, credential in requests:
            body = route.body or b""
            lines = [
                f"{route.method} {route.path} HTTP/1.1",
                "Host: localhost",
                f"Content-Length: {len(body)}",
                *(f"{name}: {value}" for name, value in (*route.headers, *credential.items())),
            ]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            head = await reader.readuntil(b"\r\n\r\n")
            found[int(head.split(b" ", 2)[1])] += 1
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or b"0"))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(run(port, requests) for (port, _), requests in jobs.items()))
    return found


def _flood_grpc(port, headers, count):
    """Make calls with few connections, many at a time; the number of each status."""
    found = collections.Counter()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        pairs = _mixed(CALLS, headers, count)
        while batch := list(itertools.islice(pairs, 100)):
            started = [(route, start_call(channel, route, each)) for route, each in batch]
            for route, responses in started:
                found[end_call(route, responses)[0]] += 1
    return found


# Changes while the server runs


def test_key_that_is_revoked_fails_on_kept_connections_and_streams(policed, client, channel):
    headers = use_key(policed, "everything", is_new=True)
    key = headers["x-api-key"]
    (infer,) = [route for route in KSERVE if route.path == "/v2/models/echo/infer"]
    call, stream = CALLS[-2], CALLS[-1]
    for _ in range(40):  # they travel as columns in the end
        assert client.ask(infer, headers)[0] == 200
        assert end_call(call, start_call(channel, call, headers))[0] is grpc.StatusCode.OK
    requests = _Requests()
    method = channel.stream_stream(
        stream.path, request_serializer=bytes, response_deserializer=bytes
    )
    responses = method(requests, metadata=tuple(headers.items()), timeout=DEADLINE_S)
    requests.send(stream.message)
    first = next(responses)

    policed.policy.revoke(key)

    assert first
    assert eventually(lambda: client.ask(infer, headers)[0] == 401)
    assert eventually(
        lambda: (
            end_call(call, start_call(channel, call, headers))[0] is grpc.StatusCode.UNAUTHENTICATED
        )
    )
    requests.send(stream.message)
    with pytest.raises(grpc.RpcError) as ended:
        for _ in responses:
            pass
    assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
    requests.end()


class _Requests:
    """The requests of a stream, as a test sends them."""

    def __init__(self):
        self._items = collections.deque()
        self._is_over = False

    def send(self, message):
        self._items.append(message)

    def end(self):
        self._is_over = True

    def __iter__(self):
        return self

    def __next__(self):
        assert eventually(lambda: self._items or self._is_over)
        if self._items:
            return self._items.popleft()
        raise StopIteration


def test_rights_that_are_taken_away_fail_under_load(policed, client, channel):
    headers = use_key(policed, "everything")
    (infer,) = [route for route in KSERVE if route.path == "/v2/models/echo/infer"]
    call = CALLS[-2]
    former = policed.policy.path.read_text()
    for _ in range(40):
        assert client.ask(infer, headers)[0] == 200
        assert end_call(call, start_call(channel, call, headers))[0] is grpc.StatusCode.OK

    policed.policy.write(
        former.replace(
            '[principals.everything]\napis = ["*"]', '[principals.everything]\napis = ["health"]'
        )
    )
    try:
        is_http = eventually(lambda: client.ask(infer, headers)[0] == 403)
        denied = grpc.StatusCode.PERMISSION_DENIED
        is_grpc = eventually(
            lambda: end_call(call, start_call(channel, call, headers))[0] is denied
        )
    finally:
        policed.policy.write(former)

    assert is_http
    assert is_grpc
    assert eventually(lambda: client.ask(infer, headers)[0] == 200)


def test_policy_that_is_broken_changes_nothing(policed, client):
    headers = use_key(policed, "everything")
    former = policed.policy.path.read_text()
    policed.policy.write("x = ")
    try:
        is_told = eventually(
            lambda: "nv_access_policy_outdated 1" in client.ask(METRICS[0], headers)[1].decode()
        )
        status = client.ask(KSERVE[0], headers)[0]
    finally:
        policed.policy.write(former)

    assert is_told
    assert status == 200
    assert "The former policy stays in force" in policed.output


def test_columns_of_one_principal_are_not_for_another(policed, channel):
    """Requests that many others have taught the server are decided on, too."""
    everything, others = use_key(policed, "everything"), use_key(policed, "others")
    call = CALLS[-2]
    batch = [start_call(channel, call, everything) for _ in range(200)]
    codes = {end_call(call, responses)[0] for responses in batch}
    mixed = [
        (each, start_call(channel, call, each)) for each in (everything, others) for _ in range(100)
    ]
    results = collections.Counter(
        (each is everything, end_call(call, responses)[0]) for each, responses in mixed
    )

    assert codes == {grpc.StatusCode.OK}
    assert results == {
        (True, grpc.StatusCode.OK): 100,
        (False, grpc.StatusCode.PERMISSION_DENIED): 100,
    }


def test_streamed_columns_of_one_principal_are_not_for_another(policed, channel):
    everything, others = use_key(policed, "everything"), use_key(policed, "others")

    def messages():
        for number in range(100):
            yield grpc_request(
                "turns", sequence_id=7, sequence_start=number == 0, sequence_end=number == 99
            ).SerializeToString()

    route = GrpcRoute(SERVICE + "ModelStreamInfer", Answers.MODEL)
    method = channel.stream_stream(route.path, request_serializer=bytes)
    answers = {}
    for name, headers in (("everything", everything), ("others", others)):
        found = list(method(messages(), metadata=tuple(headers.items()), timeout=DEADLINE_S))
        answers[name] = [b"has no right to" in each for each in found]

    assert answers == {"everything": [False] * 100, "others": [True] * 100}


def test_metrics_count_refusals_by_reason(policed, client):
    headers = use_key(policed, "everything")
    client.ask(KSERVE[0], {})

    def counted():
        page = client.ask(METRICS[0], headers)[1].decode()
        return 'nv_access_refusal_count{reason="missing"}' in page

    assert eventually(counted)


def test_own_commands_need_no_key(policed, client):
    (index,) = [route for route in KSERVE if route.path == "/v2/repository/index"]
    address = parse_address(f"127.0.0.1:{policed.http_port}")
    headers = own_headers(ask_own_server(address), address)

    status, body, _ = client.ask(index, headers)

    assert status == 200
    assert b"echo" in body
    assert headers["pytriton-own-key"] not in policed.output


# Addresses that send wrong credentials
