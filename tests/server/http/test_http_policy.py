# SPDX-License-Identifier: Apache-2.0
"""What was decided about a head is not kept longer than it is true, nor for other connections."""

from __future__ import annotations

import gzip
import time

import msgspec
import pytest

from pytriton.base.protos import service_pb2
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.server.access.client_addresses import TrustedProxies
from pytriton.serving.server.access.control import AccessControl
from pytriton.serving.server.access.credentials import ClientCertificate, Peer
from pytriton.serving.server.access.keys import make_key
from pytriton.serving.server.access.policy import CertificateRule, Issuer, Policy, Rights
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.cloud.apis import make_cloud_api
from pytriton.serving.server.http.request import LARGE_BODY_BYTES
from pytriton.testing import FakeEventLoop
from tests.access_policies import AUDIENCE, TokenMaker
from tests.server.control_fakes import FakeControl
from tests.server.grpc_fakes import GrpcClient, framed, infer_request
from tests.server.http2_fakes import Http2Client
from tests.server.http2_fakes import head as fields_of
from tests.server.http_fakes import Client, get, post
from tests.server.http_models import INFER, InlineBackground, Service, infer_body
from tests.server.openai.openai_service import OpenAIService
from tests.wire.http2.frame_client import data as data_frame

NOW_S = 1_000_000.0
LARGE = 1 << 20


class Setting:
    """A server with a policy, whose clock a test sets."""

    def __init__(self, **changes):
        self.now_s = NOW_S
        self.key, self.record = make_key("team", NOW_S, changes.pop("expires_s", None))
        self.policy = Policy(
            principals={
                "team": Rights(apis=("metadata", "inference"), models=("double",)),
                "guest": Rights(apis=("metadata",)),
                "other": changes.pop("other", Rights()),
            },
            keys={self.record.id: self.record},
            **changes,
        )
        proxies = TrustedProxies(["10.9.0.0/16"])
        self.access = AccessControl(self.policy, "own", lambda: self.now_s, proxies)
        self.service = Service(access=self.access, background=BusyBackground())

    def client(self, name=""):
        """A connection, with a certificate of this name."""
        certificate = None
        if name:
            subject = frozenset({("commonName", name)})
            certificate = ClientCertificate(name.ljust(64, "0"), subject, frozenset(), NOW_S * 2)
        client = Client(self.service.api)
        client.connection.peer = Peer("10.0.0.1", certificate)
        return client

    def revoke(self):
        revoked = msgspec.structs.replace(self.record, revoked_s=self.now_s)
        self.access.use(msgspec.structs.replace(self.policy, keys={revoked.id: revoked}))


def status(client, data):
    """The status of one more answer."""
    before = len(client.answers())
    client.send(data)
    return client.answers()[before].status


def request_of(key):
    return get(b"/v2/models/double", b"x-api-key: %b" % key.encode())


@pytest.fixture
def setting():
    return Setting()


def test_head_is_decided_on_once(setting):
    client = setting.client()

    first = status(client, request_of(setting.key))
    setting.access.identify = None  # nobody is identified any more
    second = status(client, request_of(setting.key))

    assert first == second == 200


def test_head_of_a_revoked_key_is_refused_on_a_kept_connection(setting):
    client = setting.client()

    before = [status(client, request_of(setting.key)) for _ in range(2)]
    setting.revoke()

    assert before == [200, 200]
    assert status(client, request_of(setting.key)) == 401
    assert status(setting.client(), request_of(setting.key)) == 401


def test_head_of_a_key_that_expires_is_refused_on_a_kept_connection():
    setting = Setting(expires_s=NOW_S + 10)
    client = setting.client()

    before = [status(client, request_of(setting.key)) for _ in range(2)]
    setting.now_s += 10

    assert before == [200, 200]
    assert status(client, request_of(setting.key)) == 401


RULES = (CertificateRule(subject=(("CN", "a"),), principal="team"),)


def test_head_without_a_credential_is_that_of_its_connection():
    setting = Setting(certificates=RULES)
    named, nameless, other = setting.client("a"), setting.client(), setting.client("b")
    data = get(b"/v2/models/double")

    statuses = [status(each, data) for each in (named, nameless, other, named, nameless)]

    assert statuses == [200, 401, 401, 200, 401]


def test_head_of_a_guest_is_not_that_of_a_certificate():
    setting = Setting(certificates=RULES, anonymous="guest")
    named, nameless = setting.client("a"), setting.client()
    data = post(b"{}", INFER)

    assert [status(each, data) for each in (nameless, named, nameless)] == [403, 500, 403]


def test_request_has_its_principal(setting):
    client = setting.client()
    client.send(post(infer_body(), INFER, b"x-api-key: %b" % setting.key.encode()))
    (head,) = [head for head in setting.service.api.cached_heads.values() if head.target == INFER]

    assert head.resolved.principal == "team"


def deflated_request():
    """A request whose body is read in the background, and whose head may be kept."""
    body = gzip.compress(infer_body() + b" " * LARGE)
    return post(body, INFER, b"content-encoding: gzip")


class BusyBackground(InlineBackground):
    """Lets something else happen while it works for the first time."""

    meanwhile = None

    async def run(self, function, *arguments):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return await super().run(function, *arguments)


def test_request_that_is_read_later_keeps_its_principal():
    rules = (*RULES, CertificateRule(subject=(("CN", "b"),), principal="other"))
    setting = Setting(certificates=rules, other=Rights(apis=("inference",)))
    first, second = setting.client("a"), setting.client("b")
    data = deflated_request()

    setting.client("a").send(data)  # from now on, its head is known
    setting.service.background.meanwhile = lambda: second.send(data)
    first.send(data)
    running = setting.service.instances["double"].inferences[1:]

    assert [each.request.fields.principal for each in running] == ["other", "team"]


def test_request_that_is_read_later_is_answered_although_its_head_is_refused_meanwhile():
    setting = Setting(certificates=RULES)
    first, second = setting.client("a"), setting.client("b")
    data = deflated_request()

    setting.client("a").send(data)  # from now on, its head is known
    setting.service.background.meanwhile = lambda: second.send(data)
    first.send(data)
    _, running = setting.service.instances["double"].inferences

    assert running.request.fields.principal == "team"
    assert [answer.status for answer in second.answers()] == [401]


@pytest.mark.parametrize("has_right", [True, False])
def test_large_body_gets_memory_of_its_model_only_with_a_right(setting, has_right):
    asked = []
    model = setting.service.engine.lookup("double", "")
    model.body_memory = lambda size, header: asked.append(size)
    key = setting.key if has_right else make_key("team", 0)[0]
    client = setting.client()

    client.send(post(b" " * LARGE, INFER, b"x-api-key: %b" % key.encode()))

    (answer,) = client.answers()

    assert bool(asked) is has_right
    assert answer.status == (500 if has_right else 401)
    assert answer.headers.get(b"WWW-Authenticate") == (None if has_right else b"Bearer")
    assert setting.access.refusals == ({} if has_right else {"unknown_key": 1})


@pytest.mark.parametrize("models,patterns", [(("double", "e*"), ("double", "e*")), (("*",), None)])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_load_may_reach_what_its_sender_has_a_right_to(setting, protocol, models, patterns):
    control = FakeControl()
    rights = {"team": Rights(apis=("model-repository",), models=models)}
    setting.access.use(msgspec.structs.replace(setting.policy, principals=rights))
    if protocol == "http":
        setting.service = Service(access=setting.access, control=control)
        line = b"x-api-key: %b" % setting.key.encode()
        setting.client().send(post(b"", b"/v2/repository/models/double/load", line))
    else:
        loop = FakeEventLoop()
        client = GrpcClient(access=setting.access, control=control, loop=loop)
        client.connection.peer = Peer("10.0.0.1", None)
        message = service_pb2.RepositoryModelLoadRequest(model_name="double")
        key = ("x-api-key", setting.key)
        client.call("RepositoryModelLoad", message.SerializeToString(), key)
        control.finish()
        client.run()
        loop.close()

    assert control.calls == [("load", "double", None, {})]
    assert control.patterns == patterns


@pytest.mark.parametrize("models,is_sent", [(("double",), False), (("*",), True)])
@pytest.mark.parametrize(
    "method,target,body",
    [
        (b"POST", b"/models", b'{"model_name":"double","url":"/any"}'),
        (b"DELETE", b"/models/double", b""),
    ],
)
def test_sagemakers_models_come_and_go_by_who_has_a_right_to_all(
    method, target, body, models, is_sent
):
    setting = Setting()
    rights = {"team": Rights(apis=("model-repository",), models=models)}
    setting.access.use(msgspec.structs.replace(setting.policy, principals=rights))
    service = setting.service
    api = make_cloud_api(ClientService.SAGEMAKER, service.api, service.client, service.options)
    client = Client(api)
    client.connection.peer = Peer("10.0.0.1", None)
    lines = (b"x-api-key: %b" % setting.key.encode(), b"Content-Length: %d" % len(body))

    client.send(head_of(method, target, *lines) + body)

    # Without repositories, 400 and 404 tell that it was passed on.
    assert client.statuses()[0] in ((400, 404) if is_sent else (403,))


CHUNKED = b"Transfer-Encoding: chunked"


def openai_setting():
    """A server with OpenAI's routes, and with a policy."""
    setting = Setting()
    setting.service = OpenAIService(access=setting.access)
    return setting


def head_of(method, target, *lines):
    first = b"%b %b HTTP/1.1" % (method, target)
    return b"\r\n".join((first, b"Host: localhost", *lines, b"", b""))


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(
    "method,target,has_key,status",
    [
        (b"POST", b"/v1/chat/completions", False, 401),
        (b"POST", b"/v1/embeddings", False, 401),
        (b"POST", b"/v1/nothing", False, 401),
        (b"POST", b"/v1/nothing", True, 404),
        (b"GET", b"/v1/models", True, 400),
        (b"GET", b"/v1/chat/completions", True, 405),
        (b"POST", b"/nothing", False, 404),
        (b"POST", INFER, False, 401),
        (b"PUT", INFER, True, 405),
        (b"POST", b"/v2/models/whole/infer", True, 403),
        (b"POST", b"/v2/models/double", True, 400),
        (b"POST", b"/v2/repository/models/double/load", True, 403),
    ],
)
def test_large_body_is_refused_with_its_head(method, target, has_key, status, is_chunked):
    setting = openai_setting()
    client = setting.client()
    lines = [b"x-api-key: %b" % setting.key.encode()] if has_key else []
    part = bytes(LARGE_BODY_BYTES)
    if is_chunked:
        chunks = b"%x\r\n%b\r\n1\r\nx" % (len(part), part)
        client.send(head_of(method, target, *lines, CHUNKED) + chunks)
    else:
        client.send(head_of(method, target, *lines, b"Content-Length: %d" % LARGE))

    assert [answer.status for answer in client.answers()] == [status]
    assert setting.service.api.request_memory.used_bytes == 0


def test_large_body_for_openais_routes_is_read_for_who_may_send_it():
    setting = openai_setting()
    client = setting.client()
    text = b'{"model": "talk", "prompt": "' + b"x" * LARGE + b'"}'

    client.send(post(text, b"/v1/completions", b"x-api-key: %b" % setting.key.encode()))
    client.loop.run()

    (answer,) = client.answers()

    assert answer.status == 403
    assert b"team has no right to inference of the model 'talk'" in answer.body


@pytest.mark.parametrize("target", [b"/v1/completions", b"/v1/nothing", INFER])
def test_large_body_over_http2_is_refused_with_its_head(target):
    setting = openai_setting()
    client = Http2Client(setting.service.api)
    client.connection.peer = Peer("10.0.0.1", None)
    announced = (b"content-length", b"%d" % LARGE)
    stream = client.open(fields_of(target, announced, method=b"POST"))
    client.read()

    assert client.reply(stream).status == 401
    assert setting.service.api.request_memory.used_bytes == 0


def test_heads_are_known_again_after_a_change_of_the_policy(setting):
    principals = {"team": Rights(apis=("metadata", "health"))}
    policy = msgspec.structs.replace(setting.policy, principals=principals)
    setting.access.use(policy)
    key = (b"x-api-key", setting.key.encode())
    client = Http2Client(setting.service.api)
    service = setting.service
    cloud = Client(
        make_cloud_api(ClientService.SAGEMAKER, service.api, service.client, service.options)
    )
    client.connection.peer = cloud.connection.peer = Peer("10.0.0.1", None)
    ask = get(b"/ping", b"x-api-key: %b" % setting.key.encode())

    def statuses():
        stream = client.get(b"/v2/models/double", key)
        return client.reply(stream).status, status(cloud, ask)

    before = [statuses() for _ in range(2)]
    setting.access.use(msgspec.structs.replace(policy, max_failures_per_minute=3))
    after = statuses()
    setting.access.identify = None  # nobody is identified any more

    assert before == [(200, 200)] * 2
    assert after == statuses() == (200, 200)


@pytest.mark.parametrize("is_refused", [True, False])
def test_large_message_takes_the_models_memory_only_with_a_right(is_refused):
    setting = Setting(other=Rights(apis=("inference",), models=("coupled",)))
    principal = "team" if is_refused else "other"
    key, record = make_key(principal, NOW_S)
    setting.access.use(msgspec.structs.replace(setting.policy, keys={record.id: record}))
    client = GrpcClient(access=setting.access)
    client.connection.peer = Peer("10.0.0.1", None)
    asked = []
    client.engine.loaded["coupled"].body_memory = lambda size, header: asked.append(size)
    message = service_pb2.ModelInferRequest(model_name="coupled")
    message.inputs.add(name="x", datatype="FP32", shape=[LARGE // 4])
    message.raw_input_contents.append(bytes(LARGE))
    content = framed(message.SerializeToString())

    stream = client.open("ModelInfer", ("x-api-key", key))
    client.receive(data_frame(stream, content[:16000]))

    if is_refused:
        assert client.response(stream).status == "7"
    assert bool(asked) is not is_refused
    assert setting.access.refusals == ({"forbidden_model": 1} if is_refused else {})


def test_call_has_its_principal_and_is_decided_on_once(setting):
    client = GrpcClient(access=setting.access)
    client.connection.peer = Peer("10.0.0.1")
    key = ("x-api-key", setting.key)
    first = client.call("ModelInfer", infer_request("double"), key)
    client.call("ModelInfer", infer_request("double"), key)  # with references to the first head
    setting.access.identify = None
    client.open("ModelInfer", key)
    (call,) = client.connection.open_calls()

    assert client.response(first).status == "5"  # this engine has no such model
    assert call.head.principal == "team"


def test_call_with_two_different_credentials_is_refused():
    setting = Setting(anonymous="guest")
    client = GrpcClient(access=setting.access)
    client.connection.peer = Peer("10.0.0.1")
    keys = [("x-api-key", setting.key), ("x-api-key", make_key("team", 0)[0])]

    refused = client.call("ServerMetadata", b"", *keys)
    allowed = client.call("ServerMetadata", b"", keys[0], keys[0])

    assert client.response(refused).status == "16"
    assert client.response(allowed).status == "0"


def test_list_leaves_models_out_although_its_head_is_refused_meanwhile(setting):
    principals = {"team": Rights(apis=("model-repository",), models=("double",))}
    setting.access.use(msgspec.structs.replace(setting.policy, principals=principals))
    client = GrpcClient(access=setting.access)
    client.connection.peer = Peer("10.0.0.1")

    async def index(*, ready):
        (call,) = client.connection.open_calls()
        call.head.grant = None  # as a later call with this head leaves it, after its key is revoked
        return [IndexEntry(name=name, version="1", state="READY") for name in ("double", "other")]

    client.client.index = index
    listed = client.call("RepositoryIndex", b"", ("x-api-key", setting.key))
    (message,) = client.response(listed).messages
    found = service_pb2.RepositoryIndexResponse.FromString(bytes(message))

    assert [model.name for model in found.models] == ["double"]


def test_clients_behind_a_proxy_are_told_apart_over_both_protocols():
    setting = Setting(max_failures_per_minute=2)
    client, caller = Client(setting.service.api), GrpcClient(access=setting.access)
    client.connection.peer = caller.connection.peer = Peer("10.9.0.1")
    wrong = [make_key("team", 0)[0] for _ in range(8)]

    def by_http(address):
        key = b"x-api-key: %b" % wrong.pop().encode()
        return status(client, get(b"/v2", key, b"x-forwarded-for: %b" % address))

    def by_grpc(*addresses):
        fields = [("x-forwarded-for", each) for each in addresses]
        stream = caller.call("ServerMetadata", b"", ("x-api-key", wrong.pop()), *fields)
        return caller.response(stream).status

    first = [by_http(b"203.0.113.7"), by_grpc("1.1.1.1", "203.0.113.7")]
    throttled = [by_http(b"203.0.113.7"), by_grpc("1.1.1.2, 203.0.113.7", "10.9.0.2")]
    others = [by_http(b"203.0.113.8"), by_grpc("203.0.113.7", "203.0.113.8")]

    assert first == [401, "16"]
    assert throttled == [429, "8"]
    assert others == [401, "16"]


def test_waits_are_told_over_both_protocols():
    setting = Setting(max_failures_per_minute=1)
    client, caller = setting.client(), GrpcClient(access=setting.access)
    caller.connection.peer = Peer("10.0.0.1")
    wrong = make_key("team", 0)[0]
    status(client, request_of(wrong))

    client.send(request_of(wrong))
    answer = client.answers()[-1]
    response = caller.response(caller.call("ServerMetadata", b"", ("x-api-key", wrong)))

    assert (answer.status, answer.headers[b"Retry-After"]) == (429, b"1")
    assert (response.status, response.trailers["retry-after"]) == ("8", "1")


def test_token_that_nobody_has_time_for_is_refused_over_both_protocols():
    issuer = TokenMaker()
    record = Issuer(
        issuer=issuer.issuer, audience=(AUDIENCE,), principals=(("*", "team"),), jwks=issuer.jwks()
    )
    setting = Setting(issuers=(record,))
    setting.now_s = time.time()
    setting.access._signatures.run = lambda is_known, now_s, check: None
    client, caller = setting.client(), GrpcClient(access=setting.access)
    caller.connection.peer = Peer("10.0.0.1")
    bearer = f"Bearer {issuer.token()}"

    client.send(get(b"/v2", b"authorization: %b" % bearer.encode()))
    answer = client.answers()[-1]
    response = caller.response(caller.call("ServerMetadata", b"", ("authorization", bearer)))

    assert (answer.status, answer.headers[b"Retry-After"]) == (429, b"1")
    assert (response.status, response.trailers["retry-after"]) == ("8", "1")
    assert setting.access.refusals == {"signature_limit": 2}
