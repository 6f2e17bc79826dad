# SPDX-License-Identifier: Apache-2.0
"""Who a request is of by its headers and its connection, and what that may do."""

from __future__ import annotations

import logging

import msgspec
import pytest

from pytriton.serving.server.access.client_addresses import TrustedProxies
from pytriton.serving.server.access.control import AccessControl, Grant
from pytriton.serving.server.access.credentials import OWNER, PROBE, ClientCertificate, Peer
from pytriton.serving.server.access.decisions import Denial, Reason, Scope, visible
from pytriton.serving.server.access.keys import make_key, split_key
from pytriton.serving.server.access.policy import CertificateRule, Policy, Rights
from pytriton.serving.server.api.authorization import (
    Authorization,
    RestrictedGroup,
    RestrictedProtocol,
)

NOW_S = 1_000_000.0
RIGHTS = {
    "team-a": Rights(apis=("inference", "metadata"), models=("llm-*", "rank")),
    "admin": Rights(apis=("*",)),
    "guest": Rights(apis=("health",)),
    "clerk": Rights(apis=("inference",), models=()),
}


class Client:
    """A connection of an address, maybe with a certificate."""

    def __init__(self, address="10.0.0.1", certificate=None):
        self.peer = Peer(address, certificate)


class Setting:
    """A policy with one key of team-a, and a clock."""

    def __init__(self, **changes):
        self.now_s = NOW_S
        self.key, self.record = make_key("team-a", NOW_S, changes.pop("expires_s", None))
        self.policy = Policy(
            principals=RIGHTS,
            **{"keys": {self.record.id: self.record}, "max_failures_per_minute": 3, **changes},
        )
        self.control = AccessControl(
            self.policy, "own", lambda: self.now_s, TrustedProxies(["10.9.0.0/16"])
        )

    def identify(self, client=None, **headers):
        given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        return self.control.identify(given.get, client or Client())

    def name(self, client=None, **headers):
        """The principal, or the reason of the refusal."""
        found = self.identify(client, **headers)
        return found.name if isinstance(found, Grant) else found.reason


@pytest.fixture
def setting():
    return Setting()


@pytest.mark.parametrize(
    "form", [{"x_api_key": "{}"}, {"authorization": "Bearer {}"}, {"authorization": "bearer  {} "}]
)
def test_key_is_its_principal(setting, form):
    headers = {name: text.format(setting.key) for name, text in form.items()}

    assert setting.name(**headers) == "team-a"


@pytest.mark.parametrize(
    "headers,reason",
    [
        ({"authorization": "Basic YTpi"}, Reason.MALFORMED),
        ({"authorization": "Bearer "}, Reason.MALFORMED),
        ({"authorization": "Bearer a b"}, Reason.MALFORMED),
        ({"x_api_key": ""}, Reason.MALFORMED),
        ({"x_api_key": "ptk_"}, Reason.MALFORMED),
        ({"x_api_key": "a" * 20_000}, Reason.MALFORMED),
        ({"x_api_key": "a.b.c"}, Reason.MALFORMED),
        ({"x_api_key": make_key("team-a", 0)[0]}, Reason.UNKNOWN_KEY),
        ({"pytriton_own_key": "other"}, Reason.UNKNOWN_KEY),
        ({"pytriton_own_key": ""}, Reason.UNKNOWN_KEY),
    ],
)
def test_credential_that_is_wrong_is_refused_although_none_is_allowed(headers, reason):
    setting = Setting(anonymous="guest")

    denial = setting.identify(**headers)

    assert setting.name() == "guest"
    assert denial.reason is reason
    assert (denial.http_status, denial.grpc_status) == (401, 16)
    assert denial.headers == b"WWW-Authenticate: Bearer\r\n"


def test_two_credentials_have_to_be_equal(setting):
    bearer = f"Bearer {setting.key}"

    assert setting.name(authorization=bearer, x_api_key=setting.key) == "team-a"
    assert setting.name(authorization=bearer, x_api_key=setting.key + "x") is Reason.MALFORMED


def test_key_of_the_servers_user_counts_after_a_credential(setting):
    assert setting.name(pytriton_own_key="own") == OWNER
    assert setting.name(pytriton_own_key="own", x_api_key=setting.key) == "team-a"
    assert setting.name(pytriton_own_key="own", x_api_key="other") is Reason.MALFORMED


def test_key_expires_while_it_is_used():
    setting = Setting(expires_s=NOW_S + 10)
    grant = setting.identify(x_api_key=setting.key)

    was_current = setting.control.is_current(grant, Client())
    setting.now_s += 10

    assert was_current
    assert not setting.control.is_current(grant, Client())
    assert setting.name(x_api_key=setting.key) is Reason.EXPIRED


def test_key_is_revoked_by_the_next_policy(setting):
    grant = setting.identify(x_api_key=setting.key)
    told = []
    setting.control.on_changed.append(lambda: told.append(True))
    revoked = msgspec.structs.replace(setting.record, revoked_s=NOW_S)

    setting.control.use(msgspec.structs.replace(setting.policy, keys={revoked.id: revoked}))

    assert told == [True]
    assert not setting.control.is_current(grant, Client())
    assert setting.name(x_api_key=setting.key) is Reason.REVOKED


def test_key_of_a_principal_that_is_gone_is_refused(setting):
    setting.control.use(msgspec.structs.replace(setting.policy, principals={}))

    assert setting.name(x_api_key=setting.key) is Reason.UNKNOWN_PRINCIPAL


# Rights


@pytest.mark.parametrize(
    "principal,api,model,reason",
    [
        ("team-a", "inference", "llm-7b", None),
        ("team-a", "inference", "rank", None),
        ("team-a", "inference", "ranking", Reason.FORBIDDEN_MODEL),
        ("team-a", "inference", "LLM-7b", Reason.FORBIDDEN_MODEL),
        ("team-a", "inference", "llm-7b\nother", None),
        ("team-a", "inference", "other\nllm-7b", Reason.FORBIDDEN_MODEL),
        ("team-a", "metadata", Scope.NONE, None),
        ("team-a", "metadata", Scope.FILTERED, None),
        ("team-a", "metadata", Scope.ALL, Reason.FORBIDDEN_MODEL),
        ("team-a", "logging", Scope.NONE, Reason.FORBIDDEN_API),
        ("team-a", "inference", Scope.BY_BODY, None),
        ("clerk", "inference", Scope.BY_BODY, Reason.FORBIDDEN_MODEL),
        ("clerk", "inference", Scope.NONE, None),
        ("admin", "logging", Scope.ALL, None),
        ("admin", "inference", "anything", None),
        ("guest", "health", "anything", None),
        ("guest", "metadata", "anything", Reason.FORBIDDEN_API),
    ],
)
def test_rights_are_those_to_apis_and_models(principal, api, model, reason):
    setting = Setting(anonymous=principal)

    denial = setting.control.refusal(setting.identify(), api, model)

    assert (denial and denial.reason) is reason
    if denial is not None:
        assert (denial.http_status, denial.grpc_status) == (403, 7)
        assert principal in denial.message
        assert api in denial.message
        assert "llm-*" not in denial.message


@pytest.mark.parametrize(
    "api,model,is_allowed",
    [
        ("health", Scope.NONE, True),
        ("health", "rank", False),
        ("metadata", Scope.NONE, False),
        ("metrics", Scope.ALL, False),
    ],
)
def test_nobody_may_ask_for_the_health_of_the_server_only(setting, api, model, is_allowed):
    denial = setting.control.refusal(setting.identify(), api, model)

    assert setting.name() == PROBE
    assert (denial is None) is is_allowed
    if denial is not None:
        assert (denial.http_status, denial.reason) == (401, Reason.MISSING)


def test_lists_leave_out_models_without_a_right(setting):
    grant = setting.identify(x_api_key=setting.key)
    names = ["llm-1", "other", "rank"]

    assert visible(grant, names, str) == ["llm-1", "rank"]
    assert visible(setting.identify(pytriton_own_key="own"), names, str) == names
    assert visible(None, names, str) == names


def test_restricted_api_needs_its_header_and_a_right(setting):
    group = RestrictedGroup(apis=("inference",), header="token", value="secret")
    decide = Authorization((group,), RestrictedProtocol.HTTP, access=setting.control).decide

    def decision(**headers):
        given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        found = decide("inference", "rank", given.get, Client())
        return found.reason if isinstance(found, Denial) else found.name

    assert decision(x_api_key=setting.key, token="secret") == "team-a"
    assert decision(x_api_key=setting.key) is Reason.RESTRICTED
    assert decision(token="secret") is Reason.MISSING


# Certificates


def certificate(name="client-a", until_s=NOW_S + 100):
    return ClientCertificate(
        "f" * 60 + name[-4:], frozenset({("commonName", name)}), frozenset(), until_s
    )


RULES = (CertificateRule(subject=(("CN", "client-a"),), principal="team-a"),)


def test_certificate_is_its_principal_until_it_expires():
    setting = Setting(certificates=RULES)
    client = Client(certificate=certificate())

    first = setting.name(client)
    grant = setting.identify(client)
    setting.now_s += 100

    assert first == "team-a"
    assert not setting.control.is_current(grant, client)
    assert setting.name(client) is Reason.EXPIRED


def test_certificate_of_one_connection_says_nothing_about_another():
    setting = Setting(certificates=RULES, anonymous="guest")
    known, unknown = Client(certificate=certificate()), Client(certificate=certificate("other"))
    grant, of_nobody = setting.identify(known), setting.identify(Client())

    assert setting.control.is_current(grant, Client(certificate=certificate()))
    assert not setting.control.is_current(grant, unknown)
    assert not setting.control.is_current(grant, Client())
    assert not setting.control.is_current(of_nobody, known)
    assert setting.name(unknown) == "guest"


def test_credential_counts_before_the_certificate():
    setting = Setting(certificates=(CertificateRule(dns="a", principal="admin"), *RULES))
    client = Client(certificate=certificate())
    grant = setting.identify(client, x_api_key=setting.key)

    assert grant.name == "team-a"
    assert setting.control.is_current(grant, Client())
    assert setting.name(client, x_api_key=setting.key + "x") is Reason.MALFORMED


# What it does about failures


def test_new_credentials_of_an_address_with_failures_have_to_wait(setting):
    known = Setting().key  # of another server
    setting.name(x_api_key=setting.key)
    reasons = [setting.name(x_api_key=make_key("team-a", 0)[0]) for _ in range(4)]
    denial = setting.identify(x_api_key=known)

    assert reasons == [Reason.UNKNOWN_KEY] * 3 + [Reason.THROTTLED]
    assert (denial.http_status, denial.grpc_status) == (429, 8)
    assert denial.headers == b"Retry-After: 1\r\n"
    assert setting.name(x_api_key=setting.key) == "team-a"
    assert setting.name(pytriton_own_key="own") == OWNER
    assert setting.name() == PROBE
    assert setting.name(Client("10.0.0.2"), x_api_key=known) is Reason.UNKNOWN_KEY


def test_clients_behind_a_proxy_are_throttled_by_their_own_addresses(setting, caplog):
    proxy = Client("10.9.0.1")

    def name(address):
        key = make_key("team-a", 0)[0]
        return setting.name(proxy, x_api_key=key, x_forwarded_for=address)

    with caplog.at_level(logging.WARNING):
        attacker = [name(f"1.1.1.{number}, 203.0.113.7") for number in range(5)]
    other = name("203.0.113.8")

    assert attacker == [Reason.UNKNOWN_KEY] * 3 + [Reason.THROTTLED] * 2
    assert other is Reason.UNKNOWN_KEY
    assert "Refused a client at 203.0.113.7, key" in caplog.text


def test_header_of_a_stranger_does_not_change_its_address(setting):
    reasons = [
        setting.name(x_api_key=make_key("team-a", 0)[0], x_forwarded_for=f"203.0.113.{number}")
        for number in range(4)
    ]

    assert reasons == [Reason.UNKNOWN_KEY] * 3 + [Reason.THROTTLED]


def test_known_credential_needs_no_address(setting):
    headers = {b"x-api-key": setting.key.encode(), b"x-forwarded-for": b"203.0.113.7"}
    proxy, asked = Client("10.9.0.1"), []

    def header(name):
        asked.append(name)
        return headers.get(name)

    setting.control.identify(header, proxy)
    first, asked[:] = list(asked), []
    setting.control.identify(header, proxy)

    assert b"x-forwarded-for" in first
    assert b"x-forwarded-for" not in asked


def test_failures_are_counted_by_reason():
    setting = Setting(max_failures_per_minute=0)
    for _ in range(3):
        setting.name(x_api_key=make_key("team-a", 0)[0])
    setting.name(authorization="Basic x")
    setting.control.refusal(setting.identify(), "inference", "rank")

    assert setting.control.refusals == {"unknown_key": 3, "malformed": 1, "missing": 1}


def test_look_before_the_body_counts_nothing(setting):
    headers = {b"x-api-key": make_key("team-a", 0)[0].encode()}
    for _ in range(10):
        setting.control.identify(headers.get, Client(), is_counted=False)

    assert not setting.control.refusals
    assert setting.name(x_api_key=setting.key) == "team-a"


def test_log_names_the_address_and_the_key_and_no_secret(caplog):
    setting = Setting(max_failures_per_minute=0)
    wrong = setting.key[:-4] + ("AAAA" if not setting.key.endswith("AAAA") else "BBBB")
    with caplog.at_level(logging.WARNING):
        setting.name(x_api_key=wrong)
        for _ in range(4):
            setting.name(x_api_key=make_key("team-a", 0)[0])  # each has another id
        setting.now_s += 60
        setting.name(x_api_key=wrong)

    secret = split_key(wrong)[1]
    lines = [record.getMessage() for record in caplog.records]
    first = f"Refused a client at 10.0.0.1, key {setting.record.id}: unknown_key"
    assert lines == [first, f"{first} (4 times more since the last line)"]
    assert secret not in caplog.text
