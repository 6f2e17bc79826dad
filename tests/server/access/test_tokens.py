# SPDX-License-Identifier: Apache-2.0
"""Which tokens of issuers are accepted, and how the keys of issuers are kept."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import http.server
import json
import socketserver
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jwt
import msgspec
import pytest

from pytriton.serving.server.access import tokens as module
from pytriton.serving.server.access.control import AccessControl, Grant
from pytriton.serving.server.access.credentials import Identity, Peer
from pytriton.serving.server.access.decisions import Reason
from pytriton.serving.server.access.policy import Issuer, Policy, Rights
from pytriton.serving.server.access.tokens import (
    REFRESH_S,
    RETRY_S,
    Fetches,
    IssuerKeys,
    Tokens,
    fetch_keys,
    read_keys,
)
from tests.access_policies import AUDIENCE, ISSUER, TokenMaker
from tests.e2e.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def maker():
    made = TokenMaker()
    made.add("ec", is_rsa=False)
    return made


def issuer_of(maker, **changes):
    record = Issuer(
        issuer=maker.issuer,
        audience=(AUDIENCE, "second"),
        principals=(("alice@example.com", "team-a"), ("*@example.com", "guest")),
        jwks=maker.jwks(),
    )
    return msgspec.structs.replace(record, **changes)


def run_now(check):
    """Verify a signature, however many were wrong."""
    return check()


def verify(maker, token, **changes):
    """The principal, or the reason of the refusal."""
    found = Tokens([issuer_of(maker, **changes)]).verify(token, time.time(), run_now)
    return found.principal if isinstance(found, Identity) else found.reason


@pytest.mark.parametrize(
    "subject,principal",
    [
        ("alice@example.com", "team-a"),
        ("bob@example.com", "guest"),
        ("bob@example.com.evil.org", Reason.UNKNOWN_SUBJECT),
        (7, Reason.UNKNOWN_SUBJECT),
    ],
)
def test_subject_of_a_token_is_its_principal(maker, subject, principal):
    if isinstance(subject, int):  # PyJWT makes no token with such a subject
        token, changes = maker.token("x", email=subject), {"claim": "email"}
    else:
        token, changes = maker.token(subject), {}

    assert verify(maker, token, **changes) == principal


def test_token_may_be_signed_by_any_key_of_its_issuer(maker):
    assert verify(maker, maker.token(kid="ec")) == "team-a"
    assert verify(maker, maker.token(aud=["other", "second"])) == "team-a"


def test_claim_of_the_policy_names_the_subject(maker):
    token = maker.token("1234", email="alice@example.com")

    assert verify(maker, token) is Reason.UNKNOWN_SUBJECT
    assert verify(maker, token, claim="email") == "team-a"


@pytest.mark.parametrize(
    "make,reason",
    [
        (lambda it: it.token(exp=int(time.time()) - 100), Reason.EXPIRED),
        (lambda it: it.token(nbf=int(time.time()) + 100), Reason.NOT_YET_VALID),
        (lambda it: it.token(exp=None), Reason.MALFORMED),
        (lambda it: it.token(aud="other"), Reason.FOREIGN),
        (lambda it: it.token(aud=None), Reason.MALFORMED),
        (lambda it: it.token(iss="https://other.example.com"), Reason.FOREIGN),
        (lambda it: it.token(iss=None), Reason.FOREIGN),
        (lambda it: TokenMaker().token(), Reason.BAD_SIGNATURE),
        (lambda it: it.unsigned(), Reason.ALGORITHM),
        (lambda it: it.signed_with_public_key(), Reason.ALGORITHM),
        (lambda it: it.token(algorithm="RS512"), Reason.ALGORITHM),
        (lambda it: it.token()[:-6], Reason.BAD_SIGNATURE),
        (lambda it: it.token()[5:], Reason.MALFORMED),
        (lambda it: "a.b.c", Reason.MALFORMED),
        (lambda it: "..", Reason.MALFORMED),
    ],
)
def test_token_that_is_wrong_is_refused(maker, make, reason):
    assert verify(maker, make(maker)) is reason


@pytest.mark.parametrize(
    "make",
    [
        lambda it: "a.b.c",
        lambda it: it.token(exp=int(time.time()) - 100),
        lambda it: it.token(nbf=int(time.time()) + 100),
        lambda it: it.token(aud="other"),
        lambda it: it.token(iss="https://other.example.com"),
        lambda it: it.unsigned(),
        lambda it: jwt.encode(it.claims("x"), it.keys["k1"], "RS256", headers={"kid": "k9"}),
    ],
)
def test_signature_is_not_looked_at_if_something_else_is_wrong(maker, make):
    checks = []

    found = Tokens([issuer_of(maker)]).verify(make(maker), time.time(), checks.append)

    assert not isinstance(found, Identity)
    assert checks == []


def test_signature_comes_before_whose_a_token_is(maker):
    # Otherwise everybody could ask who has rights.
    stranger = TokenMaker()

    assert verify(maker, stranger.token("nobody@elsewhere.com")) is Reason.BAD_SIGNATURE
    assert verify(maker, maker.token("nobody@elsewhere.com")) is Reason.UNKNOWN_SUBJECT


def test_token_whose_signature_may_not_be_looked_at_is_not_accepted(maker):
    found = Tokens([issuer_of(maker)]).verify(maker.token(), time.time(), lambda check: None)

    assert found.reason is Reason.SIGNATURE_LIMIT


def test_token_that_was_not_looked_at_for_each_issuer_is_not_called_wrong(maker):
    stranger = TokenMaker()  # another table of the policy with the same issuer
    answers = iter([False, None])
    tokens = Tokens([issuer_of(stranger), issuer_of(maker)])

    found = tokens.verify(maker.token(), time.time(), lambda check: next(answers))

    assert found.reason is Reason.SIGNATURE_LIMIT


def test_right_signature_alone_does_not_suffice(maker):
    # PyJWT knows rules that nothing else here does: this token may not be used without x.
    headers = {"kid": "k1", "crit": ["x"], "x": 1}
    token = jwt.encode(maker.claims("alice@example.com"), maker.keys["k1"], "RS256", headers)

    assert verify(maker, token) is Reason.MALFORMED


def segment(text):
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "header,claims",
    [
        ("[]", "{}"),
        ("{}", "[]"),
        ("null", "null"),
        ('{"alg": "RS256"', "{}"),
        ("{}", "[" * 5000),
        ('{"alg":' * 500, "{}"),
        ("{}", '{"exp": 1e400}'),
    ],
)
def test_token_that_is_no_token_is_refused(maker, header, claims):
    token = f"{segment(header)}.{segment(claims)}.AAAA"

    assert verify(maker, token) in (Reason.MALFORMED, Reason.FOREIGN)


@pytest.mark.parametrize(
    "claim,value,reason",
    [
        ("exp", [1], Reason.MALFORMED),
        ("exp", {}, Reason.MALFORMED),
        ("exp", "soon", Reason.MALFORMED),
        ("exp", 10**400, Reason.MALFORMED),
        ("nbf", [], Reason.MALFORMED),
        ("aud", 7, Reason.FOREIGN),
        ("aud", [[AUDIENCE]], Reason.FOREIGN),
        ("aud", {AUDIENCE: 1}, Reason.FOREIGN),
        ("aud", [], Reason.FOREIGN),
        ("iss", [ISSUER], Reason.FOREIGN),
    ],
)
def test_claim_of_another_kind_is_refused(maker, claim, value, reason):
    claims = {**maker.claims("alice@example.com"), claim: value}
    header = {"alg": "RS256", "kid": "k1"}
    token = f"{segment(json.dumps(header))}.{segment(json.dumps(claims))}.AAAA"

    assert verify(maker, token) is reason


@pytest.mark.parametrize(
    "kid",
    ["[" * depth + "]" * depth for depth in range(1, 1100, 25)]
    + ['{"a":' * 300 + "1" + "}" * 300, "true", "1", "1.5", "9" * 4301],
)
def test_id_of_a_key_that_is_no_text_is_refused(maker, kid):
    claims = json.dumps(maker.claims("alice@example.com"))
    header = segment('{"alg":"RS256","kid":' + kid + "}")
    token = f"{header}.{segment(claims)}.AAAA"

    assert verify(maker, token) is Reason.MALFORMED


def test_key_whose_id_is_no_text_is_left_out(maker):
    document = json.loads(maker.jwks())
    document["keys"][0]["kid"] = [["k1"]]

    assert list(read_keys(json.dumps(document))) == ["ec"]


def test_claims_with_a_right_signature_that_cannot_be_read_are_refused(maker):
    nested = {**maker.claims("alice@example.com"), "deep": "@"}
    head = segment(json.dumps({"alg": "RS256", "kid": "k1"}))
    head += "." + segment(json.dumps(nested).replace('"@"', "[" * 990 + "]" * 990))
    algorithm = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256)
    signature = base64.urlsafe_b64encode(algorithm.sign(head.encode(), maker.keys["k1"]))

    assert verify(maker, f"{head}.{signature.decode().rstrip('=')}") is Reason.MALFORMED


def test_token_with_an_unknown_key_of_a_file_is_refused(maker):
    other = TokenMaker()
    other.add("k9")

    assert verify(maker, other.token(kid="k9")) is Reason.BAD_SIGNATURE


def test_clock_skew_is_allowed(maker):
    late = maker.token(exp=int(time.time()) - 30)
    early = maker.token(nbf=int(time.time()) + 30)

    assert verify(maker, late) == verify(maker, early) == "team-a"
    assert verify(maker, late, clock_skew_s=10) is Reason.EXPIRED
    assert verify(maker, early, clock_skew_s=10) is Reason.NOT_YET_VALID


def test_token_is_valid_until_it_expires(maker):
    expires_s = int(time.time()) + 500

    found = Tokens([issuer_of(maker)]).verify(maker.token(exp=expires_s), time.time(), run_now)

    assert found.until_s == expires_s + 60


def test_algorithms_of_the_policy_apply_to_keys_without_one(maker):
    token = maker.token(algorithm="PS256")

    assert verify(maker, token, algorithms=("PS256",)) == "team-a"
    assert verify(maker, maker.token(), algorithms=("PS256",)) is Reason.ALGORITHM


def test_keys_that_cannot_verify_are_left_out(maker):
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    encrypting = {**maker.jwk("k1"), "kid": "e", "use": "enc"}
    odd = {"kty": "XX", "kid": "o"}
    listed = [secret, encrypting, odd, 5, maker.jwk("k1")]

    assert list(read_keys(json.dumps({"keys": listed}))) == ["k1"]


# Fetching


@pytest.mark.parametrize("kind", ["RSA", "OKP"])
def test_keys_without_a_signature_are_left_out(kind):
    keys = [{"kty": kind, "alg": "none", "kid": "a"}, {"kty": 5, "alg": "none", "kid": "b"}]

    assert read_keys(json.dumps({"keys": keys})) == {}


@pytest.mark.parametrize("kid", ["k1", "ec"])
def test_private_keys_of_a_set_are_not_used(maker, kid):
    members = jwt.get_algorithm_by_name("ES256" if kid == "ec" else "RS256")
    key = {**json.loads(members.to_jwk(maker.keys[kid])), "kid": kid}

    result = verify(maker, maker.token(kid=kid), jwks=json.dumps({"keys": [key]}))

    assert "d" in key
    assert result is Reason.BAD_SIGNATURE


@pytest.mark.parametrize(
    "change,after_s,is_due",
    [
        ({}, REFRESH_S - 1, False),
        ({}, REFRESH_S, True),
        ({"is_wanted": True}, RETRY_S - 1, False),
        ({"is_wanted": True}, RETRY_S, True),
        ({"has_failed": True}, RETRY_S, True),
        ({"keys": {}}, RETRY_S, True),
    ],
)
def test_keys_are_fetched_when_they_are_old_or_one_is_missing(maker, change, after_s, is_due):
    keys = IssuerKeys(issuer_of(maker, jwks=""))
    keys.take(read_keys(maker.jwks()))
    keys.tried_s = 0.0
    for name, value in change.items():
        setattr(keys, name, value)

    assert keys.is_due(after_s) is is_due


def test_keys_of_a_file_are_not_fetched(maker):
    assert not IssuerKeys(issuer_of(maker)).is_due(1e9)


def refresh_due(tokens):
    """Fetch the keys for which it is time."""

    async def refresh():
        await asyncio.gather(*map(tokens.refresh, tokens.due()))

    asyncio.run(refresh())


class FakeIssuer:
    """Returns keys, or fails, and counts how often it was asked."""

    def __init__(self, maker):
        self.document = maker.jwks()
        self.count = 0
        self.is_down = False

    def fetch(self, issuer):
        self.count += 1
        if self.is_down:
            raise OSError("no route")
        return self.document


def test_token_with_an_unknown_key_makes_the_keys_be_fetched_again_and_again_rarely():
    first, second = TokenMaker(), TokenMaker()
    second.keys = {"k2": second.keys["k1"]}
    fake = FakeIssuer(first)
    now_s = [1000.0]
    tokens = Tokens(
        [issuer_of(first, jwks="")], fetches=Fetches(fake.fetch), clock=lambda: now_s[0]
    )
    (keys,) = tokens.issuers
    refresh = lambda: refresh_due(tokens)  # noqa: E731  it is short

    def result(token):
        found = tokens.verify(token, time.time(), run_now)
        return found.principal if isinstance(found, Identity) else found.reason

    at_start = result(first.token())
    refresh()
    known = result(first.token())
    too_soon = result(second.token(kid="k2"))
    now_s[0] += RETRY_S
    fake.document = second.jwks()
    rotated = result(second.token(kid="k2"))
    refresh()
    after = result(second.token(kid="k2")), result(first.token())
    fake.is_down = True
    now_s[0] += REFRESH_S
    refresh()
    refresh()

    assert at_start is rotated is Reason.KEYS_UNAVAILABLE
    assert known == "team-a"
    assert too_soon is Reason.BAD_SIGNATURE
    assert after == ("team-a", Reason.BAD_SIGNATURE)
    assert result(second.token(kid="k2")) == "team-a"
    assert fake.count == 3
    assert keys.has_failed


@pytest.mark.parametrize(
    "failure",
    [http.client.IncompleteRead(b""), http.client.InvalidURL("x"), RecursionError(), OSError()],
)
def test_failure_of_any_kind_does_not_end_the_fetching_of_keys(maker, failure, caplog):
    fake = FakeIssuer(maker)
    answers = iter([failure, failure])

    def fetch(issuer):
        for each in answers:
            raise each
        return fake.fetch(issuer)

    now_s = [1000.0]
    tokens = Tokens([issuer_of(maker, jwks="")], fetches=Fetches(fetch), clock=lambda: now_s[0])
    for _ in range(3):
        refresh_due(tokens)
        now_s[0] += RETRY_S

    assert isinstance(tokens.verify(maker.token(), time.time(), run_now), Identity)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_keys_stay_when_the_policy_changes(maker):
    fake = FakeIssuer(maker)
    first = Tokens([issuer_of(maker, jwks="")], fetches=Fetches(fake.fetch))
    refresh_due(first)

    second = Tokens([issuer_of(maker, jwks="")], first)

    assert isinstance(second.verify(maker.token(), time.time(), run_now), Identity)


def test_keys_stay_when_the_principals_of_their_issuer_change(maker):
    fake = FakeIssuer(maker)
    record = issuer_of(maker, jwks="")
    first = Tokens([record], fetches=Fetches(fake.fetch))
    refresh_due(first)
    changed = msgspec.structs.replace(record, principals=(("alice@*", "other"),))

    found = Tokens([changed], first).verify(maker.token(), time.time(), run_now)

    assert found.principal == "other"


def test_keys_are_read_in_the_thread_that_asks_for_them(maker, monkeypatch):
    threads = []

    def read(document, most):
        threads.append(threading.current_thread())
        return read_keys(document, most)

    monkeypatch.setattr(module, "read_keys", read)
    tokens = Tokens([issuer_of(maker, jwks="")], fetches=Fetches(FakeIssuer(maker).fetch))
    threads.clear()
    refresh_due(tokens)

    assert list(tokens.issuers[0].keys) == list(read_keys(maker.jwks()))
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    "document, problem",
    [
        (json.dumps({"keys": [{}] * 257}), "expected at most 256 keys, got 257"),
        ("[" * 100_000 + "]" * 100_000, "expected a set of keys, got too many levels"),
    ],
)
def test_document_that_is_too_large_or_too_deep_leaves_the_last_keys(
    maker, document, problem, caplog
):
    fake = FakeIssuer(maker)
    now_s = [1000.0]
    tokens = Tokens(
        [issuer_of(maker, jwks="")], fetches=Fetches(fake.fetch), clock=lambda: now_s[0]
    )
    refresh_due(tokens)
    fake.document = document
    now_s[0] += REFRESH_S
    refresh_due(tokens)

    assert tokens.issuers[0].keys
    assert [record.exc_info for record in caplog.records] == [None]
    assert f"its last ones stay: '{problem}'" in caplog.text


class HangingIssuer:
    """Does not answer before it is told, or answers for other issuers."""

    def __init__(self, maker, good=""):
        self.document = maker.jwks()
        self.good = good
        self.asked = []
        self.told = threading.Event()

    def fetch(self, issuer):
        self.asked.append(issuer.issuer)
        if issuer.issuer != self.good:
            assert self.told.wait(DEADLINE_S)
        return self.document


async def until(condition):
    """Wait for what other threads do."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0)


def test_issuer_that_hangs_does_not_keep_the_keys_of_others(maker, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0)
    fake = HangingIssuer(maker, good=ISSUER)
    records = [issuer_of(maker, jwks="", issuer=each) for each in ("https://b.example", ISSUER)]
    now_s = [1000.0]

    async def run():
        tokens = Tokens(records, fetches=Fetches(fake.fetch), clock=lambda: now_s[0])
        tokens.start(asyncio.get_running_loop())
        await until(lambda: tokens.issuers[1].keys)
        first = tokens.issuers[1].keys
        fake.document = TokenMaker().jwks()
        now_s[0] += REFRESH_S
        await until(lambda: tokens.issuers[1].keys is not first)
        tokens.stop()
        fake.told.set()

    asyncio.run(run())

    assert fake.asked.count("https://b.example") == 1


@pytest.mark.parametrize("is_same_id", [False, True])
def test_key_that_is_withdrawn_ends_in_all_processes_once_one_has_noticed(
    maker, monkeypatch, is_same_id
):
    """Also of tokens that were looked at before."""
    monkeypatch.setattr(module, "_LOOK_S", 0)
    fake = FakeIssuer(maker)
    policy = Policy(principals={"team-a": Rights()}, issuers=(issuer_of(maker, jwks=""),))
    controls = [AccessControl(policy, "own") for _ in range(3)]
    header = {b"authorization": b"Bearer " + maker.token(kid="ec").encode()}.get
    client = types.SimpleNamespace(peer=Peer("10.0.0.1"))
    other = TokenMaker()
    other.add("ec" if is_same_id else "new", is_rsa=False)
    told = []

    def tell(sender, issuer):
        told.append(issuer)
        for each in controls:
            if each is not sender:
                each.fetch_keys(issuer)

    def accepted():
        return [isinstance(each.identify(header, client), Grant) for each in controls]

    async def run():
        for each in controls:
            each.on_withdrawn = partial(tell, each)
            each._tokens.fetches = Fetches(fake.fetch)
            each.start(asyncio.get_running_loop())
        await until(lambda: all(each._tokens.issuers[0].keys for each in controls))
        before = accepted()
        fake.document = other.jwks()
        controls[1]._tokens.issuers[0].tried_s -= REFRESH_S
        await until(lambda: accepted() == [False] * 3)
        for each in controls:
            each.stop()
        return before

    assert asyncio.run(run()) == [True] * 3
    assert told == [ISSUER]
    assert fake.count == 6


def test_keys_are_fetched_while_all_threads_of_others_hang(maker):
    tokens = Tokens([issuer_of(maker, jwks="")], fetches=Fetches(FakeIssuer(maker).fetch))
    told = threading.Event()

    async def run():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        hanging = loop.run_in_executor(None, told.wait, DEADLINE_S)
        try:
            await tokens.refresh(tokens.issuers[0])
        finally:
            told.set()
            await hanging

    asyncio.run(run())

    assert tokens.issuers[0].keys


def test_issuer_that_hangs_is_asked_by_one_thread_however_often_the_policy_changes(maker):
    fake = HangingIssuer(maker)
    record = issuer_of(maker, jwks="")
    rights = {"team-a": Rights(), "guest": Rights()}
    policy = Policy(principals=rights, issuers=(record,))

    async def run():
        control = AccessControl(policy, "own")
        control._tokens = Tokens([record], fetches=Fetches(fake.fetch))
        control.start(asyncio.get_running_loop())
        for count in range(20):
            await until(lambda: fake.asked)
            changed = Rights(apis=("inference",) * count)
            issuers = (record,) if count % 3 else ()
            control.use(Policy(principals={**rights, "other": changed}, issuers=issuers))
            await asyncio.sleep(0)
        control.use(policy)
        fake.told.set()
        await until(lambda: control._tokens.issuers[0].keys)
        control.stop()

    asyncio.run(run())

    assert fake.asked == [ISSUER]


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers with what its server has for a path: a text, or an address to go to."""

    def do_GET(self):
        found = self.server.documents.get(self.path)
        self.send_response(404 if found is None else 302 if found.startswith("http") else 200)
        if found is not None and found.startswith("http"):
            self.send_header("Location", found)
        self.end_headers()
        self.wfile.write((found or "").encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def issuer_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.documents = {}
        server.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_keys_are_found_by_discovery(issuer_server, maker):
    address = issuer_server.address
    issuer_server.documents = {
        "/.well-known/openid-configuration": json.dumps(
            {"issuer": address, "jwks_uri": f"{address}/keys"}
        ),
        "/keys": maker.jwks(),
    }

    assert fetch_keys(issuer_of(maker, issuer=address)) == maker.jwks()


def test_discovery_of_another_issuer_is_refused(issuer_server, maker):
    document = json.dumps({"issuer": ISSUER, "jwks_uri": f"{issuer_server.address}/keys"})
    issuer_server.documents = {"/.well-known/openid-configuration": document}

    with pytest.raises(ValueError, match="expected a document of the issuer"):
        fetch_keys(issuer_of(maker, issuer=issuer_server.address))


def test_keys_come_from_no_other_address(issuer_server, maker):
    issuer_server.documents = {"/keys": f"{issuer_server.address}/other", "/other": maker.jwks()}

    with pytest.raises(OSError, match="302"):
        fetch_keys(issuer_of(maker, jwks_uri=f"{issuer_server.address}/keys"))


@pytest.mark.parametrize("first", [b"", b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_issuer_that_answers_byte_by_byte_has_one_deadline(maker, monkeypatch, first):
    now_s = [0.0]
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: now_s[0]))

    class Trickle(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(first)
            with contextlib.suppress(OSError):
                while True:
                    self.request.sendall(b" ")
                    now_s[0] += 1.0

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Trickle) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}/keys"
        try:
            with pytest.raises((OSError, http.client.HTTPException)) as raised:
                fetch_keys(issuer_of(maker, jwks_uri=address))
        finally:
            server.shutdown()
            thread.join()

    assert "the answer took more than 8 s" in str(raised.value)


def test_keys_are_fetched_in_the_background(issuer_server, maker):
    issuer_server.documents = {"/keys": maker.jwks()}
    record = issuer_of(maker, jwks="", jwks_uri=f"{issuer_server.address}/keys")

    async def run():
        tokens = Tokens([record])
        tokens.start(asyncio.get_running_loop())
        while not tokens.issuers[0].keys:  # noqa: ASYNC110  a thread fetches them
            await asyncio.sleep(0.01)
        tokens.stop()
        return tokens.verify(maker.token(), time.time(), run_now)

    assert isinstance(asyncio.run(asyncio.wait_for(run(), 30)), Identity)
