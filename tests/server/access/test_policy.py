# SPDX-License-Identifier: Apache-2.0
"""What a policy may say, and what is said about one that is wrong."""

from __future__ import annotations

import json

import msgspec
import pytest

from pytriton.base.quotas import PrincipalQuotas, Quota
from pytriton.serving.server.access.policy import (
    CertificateRule,
    Issuer,
    Policy,
    PolicyError,
    Rights,
    parse_policy,
)

WHOLE = """
anonymous = "guest"
keys_file = "other.json"
max_failures_per_minute = 3

[principals.guest]
apis = ["health"]

[principals.team-a]
apis = ["inference", "metadata", "metrics"]
models = ["llm-*", "rank"]
weight = 2

[[principals.team-a.quotas]]
models = ["llm-*"]
requests_per_s = 100
burst = 20
tokens_per_s = 1000.5
bytes_per_s = 1e6
concurrent = 4

[[oidc]]
issuer = "https://accounts.example.com"
audience = ["pytriton", "other"]
jwks_uri = "https://accounts.example.com/keys"
algorithms = ["RS256", "EdDSA"]
clock_skew_s = 30
claim = "email"
principals = { "alice@example.com" = "team-a", "*@example.com" = "guest" }

[[oidc]]
issuer = "anything"
audience = "pytriton"
jwks_file = "keys.json"
principals = { "*" = "guest" }

[[certificates]]
subject = "CN=client-a, O=Example"
principal = "team-a"

[[certificates]]
dns = "A.example.com"
principal = "guest"

[[certificates]]
fingerprint = "sha256:AB:REST"
principal = "guest"
""".replace("REST", ":".join(["cd"] * 31))
PRINCIPAL = '[principals.a]\napis = ["inference"]\n'


def parse(text: str) -> Policy:
    return parse_policy(text, "auth.toml", is_json=False).policy


def test_policy_has_everything_that_its_document_says():
    document = parse_policy(WHOLE, "auth.toml", is_json=False)

    assert document.keys_file == "other.json"
    assert document.jwks_files == ("", "keys.json")
    assert document.policy == Policy(
        anonymous="guest",
        max_failures_per_minute=3,
        principals={
            "guest": Rights(apis=("health",)),
            "team-a": Rights(apis=("inference", "metadata", "metrics"), models=("llm-*", "rank")),
        },
        quotas={
            "guest": PrincipalQuotas(),
            "team-a": PrincipalQuotas(
                weight=2,
                quotas=(
                    Quota(
                        models=("llm-*",),
                        requests_per_s=100,
                        burst=20,
                        tokens_per_s=1000.5,
                        bytes_per_s=1e6,
                        concurrent=4,
                    ),
                ),
            ),
        },
        issuers=(
            Issuer(
                issuer="https://accounts.example.com",
                audience=("pytriton", "other"),
                jwks_uri="https://accounts.example.com/keys",
                algorithms=("RS256", "EdDSA"),
                clock_skew_s=30,
                claim="email",
                principals=(("alice@example.com", "team-a"), ("*@example.com", "guest")),
            ),
            Issuer(issuer="anything", audience=("pytriton",), principals=(("*", "guest"),)),
        ),
        certificates=(
            CertificateRule(subject=(("CN", "client-a"), ("O", "Example")), principal="team-a"),
            CertificateRule(dns="a.example.com", principal="guest"),
            CertificateRule(fingerprint="ab" + "cd" * 31, principal="guest"),
        ),
    )


def test_policy_in_json_is_the_same_as_in_toml():
    text = json.dumps({"principals": {"a": {"apis": ["inference"]}}, "anonymous": "a"})

    in_json = parse_policy(text, "auth.json", is_json=True)
    in_toml = parse_policy('anonymous = "a"\n' + PRINCIPAL, "auth.toml", is_json=False)

    assert in_json == in_toml


def test_policy_travels_to_other_processes_unchanged():
    policy = parse(WHOLE)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=Policy) == policy


OIDC = '[[oidc]]\nissuer = "https://a.b"\naudience = "c"\nprincipals = { "*" = "a" }\n'


@pytest.mark.parametrize(
    "text,problem",
    [
        ("x =", "auth.toml is no TOML: "),
        ("principals = 1", "auth.toml: principals: expected tables, got 1"),
        ("[principals]\na = 1", "principals.a: expected a table, got 1"),
        ("[principals.a]", "principals.a.apis: expected a list of texts, got none"),
        ("[principals.a]\napis = 'x'", "principals.a.apis: expected a list of texts, got 'x'"),
        (
            "[principals.a]\napis = ['inferenc']",
            "or *; did you mean inference?, got 'inferenc'",
        ),
        (
            "[principals.a]\napi = ['health']\napis = []",
            "members of apis, models, quotas, weight; did you mean apis?, got 'api'",
        ),
        ("anonymous = 'b'\n" + PRINCIPAL, "anonymous: expected a name of the table principals"),
        (PRINCIPAL + "weight = 0", "principals.a.weight: expected a number above 0, got 0.0"),
        (PRINCIPAL + f"weight = 1{'0' * 400}", "principals.a.weight: expected a number, got 1000"),
        (
            PRINCIPAL + f"[[principals.a.quotas]]\nconcurrent = {1 << 63}",
            "principals.a.quotas[0].concurrent: expected a whole number from 1, got 9223",
        ),
        (PRINCIPAL + "weight = true", "principals.a.weight: expected a number, got True"),
        (PRINCIPAL + "models = ['']", "principals.a.models: expected a list of texts, got ['']"),
        (
            PRINCIPAL + "[[principals.a.quotas]]\nrequests_per_s = -1",
            "principals.a.quotas[0].requests_per_s: expected a number above 0, got -1.0",
        ),
        (
            PRINCIPAL + "[[principals.a.quotas]]\nconcurrent = 0",
            "principals.a.quotas[0].concurrent: expected a whole number from 1, got 0",
        ),
        (
            PRINCIPAL + "[[principals.a.quotas]]\nrequests_per_s = 1\nburst = 0.5",
            "principals.a.quotas[0].burst: expected a number from 1 on, got 0.5",
        ),
        (
            PRINCIPAL + "[[principals.a.quotas]]\nburst = 2",
            "principals.a.quotas[0].requests_per_s: expected a number beside burst, got none",
        ),
        (
            PRINCIPAL + "[[principals.a.quotas]]\nrequest_per_s = 1",
            "did you mean requests_per_s?, got 'request_per_s'",
        ),
        ("anonymus = 'a'\n" + PRINCIPAL, "did you mean anonymous?, got 'anonymus'"),
        ("['principals'.'@owner']\napis = []", "principals.@owner: expected a name of letters"),
        ("max_failures_per_minute = -1", "expected a whole number from 0, got -1"),
        (PRINCIPAL + OIDC + "algorithms = ['HS256']", "with a public key: RS256, "),
        (PRINCIPAL + OIDC + "algorithms = ['none']", "with a public key: RS256, "),
        (PRINCIPAL + OIDC + "clock_skew_s = 601", "expected seconds from 0 to 600, got 601.0"),
        (PRINCIPAL + OIDC + "jwks_uri = 'http://c.d/keys'", "expected an address with https"),
        (
            PRINCIPAL + OIDC + "jwks_uri = 'https://c.d'\njwks_file = 'f'",
            "oidc[0].jwks_file: expected either jwks_uri or jwks_file, got both",
        ),
        (PRINCIPAL + OIDC.replace('"a" }', '"b" }'), "oidc[0].principals.*: expected a name of"),
        (PRINCIPAL + OIDC.replace('{ "*" = "a" }', "{}"), "expected subjects with their"),
        (PRINCIPAL + OIDC.replace('audience = "c"\n', ""), "oidc[0].audience: expected a text"),
        (
            PRINCIPAL + "[[certificates]]\nprincipal = 'a'",
            "certificates[0]: expected subject, dns or fingerprint, got none of them",
        ),
        (
            PRINCIPAL + "[[certificates]]\nprincipal = 'a'\nfingerprint = 'sha256:00'",
            "certificates[0].fingerprint: expected sha256: and 64 hexadecimal digits",
        ),
        (
            PRINCIPAL + "[[certificates]]\nprincipal = 'a'\nsubject = ' , '",
            "certificates[0].subject: expected attributes such as CN=client-a",
        ),
        (
            PRINCIPAL + "[[certificates]]\nprincipal = 'a'\nsubject = 'CN=a, XY=b'",
            "EMAILADDRESS, SERIALNUMBER, got 'XY'",
        ),
        (
            PRINCIPAL + "[[certificates]]\nprincipal = 'a'\nsubject = 'client'",
            "certificates[0].subject: expected attributes such as CN=client-a",
        ),
    ],
)
def test_policy_that_is_wrong_is_refused_with_its_member(text, problem):
    with pytest.raises(PolicyError) as caught:
        parse(text)

    assert str(caught.value).startswith("auth.toml")
    assert problem in str(caught.value)


def test_burst_of_one_request_is_the_smallest():
    quotas = parse(PRINCIPAL + "[[principals.a.quotas]]\nrequests_per_s = 1\nburst = 1").quotas

    assert [each.burst for each in quotas["a"].quotas] == [1]


def test_policy_may_fetch_keys_from_this_machine_without_encryption():
    policy = parse(PRINCIPAL + OIDC.replace("https://a.b", "http://127.0.0.1:8080/realm"))

    assert policy.issuers[0].issuer == "http://127.0.0.1:8080/realm"


def test_attributes_of_a_subject_may_have_their_long_names():
    subject = "commonName=a, emailaddress=b@example.com, 2.5.4.97=c"
    text = PRINCIPAL + f"[[certificates]]\nprincipal = 'a'\nsubject = '{subject}'"

    (rule,) = parse_policy(text, "auth.toml", is_json=False).policy.certificates

    assert rule.subject == (("CN", "a"), ("EMAILADDRESS", "b@example.com"), ("2.5.4.97", "c"))
