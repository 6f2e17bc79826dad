# SPDX-License-Identifier: Apache-2.0
"""What a certificate of a client says, and which rules mean it."""

from __future__ import annotations

import hashlib

import pytest

from pytriton.serving.server.access.credentials import Peer, matches, read_certificate, read_peer
from pytriton.serving.server.access.policy import CertificateRule

# As `ssl.SSLObject.getpeercert` has it.
FACTS = {
    "subject": ((("organizationName", "Example"),), (("commonName", "client-a"),)),
    "subjectAltName": (("DNS", "A.example.com"), ("IP Address", "10.0.0.1")),
    "notAfter": "Jan  5 09:34:43 2030 GMT",
}
DER = b"der"
FINGERPRINT = hashlib.sha256(DER).hexdigest()


class Transport:
    """A transport that tells some facts."""

    def __init__(self, **facts):
        self._facts = facts

    def get_extra_info(self, name):
        return self._facts.get(name)

    def getpeercert(self, *, binary_form):
        return DER


@pytest.mark.parametrize(
    "rule,is_meant",
    [
        ({"subject": (("CN", "client-a"),)}, True),
        ({"subject": (("CN", "client-a"), ("O", "Example"))}, True),
        ({"subject": (("CN", "client-a"), ("O", "Other"))}, False),
        ({"subject": (("CN", "client"),)}, False),
        ({"subject": (("OU", "client-a"),)}, False),
        ({"dns": "a.example.com"}, True),
        ({"dns": "example.com"}, False),
        ({"dns": "10.0.0.1"}, False),
        ({"fingerprint": FINGERPRINT}, True),
        ({"fingerprint": "0" * 64}, False),
        ({"fingerprint": FINGERPRINT, "dns": "b.example.com"}, False),
    ],
)
def test_rule_means_certificates_with_all_that_it_asks_for(rule, is_meant):
    certificate = read_certificate(FACTS, DER)

    assert matches(CertificateRule(principal="a", **rule), certificate) is is_meant


def test_certificate_ends_when_it_says():
    assert read_certificate(FACTS, DER).until_s == 1893836083


def test_peer_has_the_address_and_the_verified_certificate():
    plain = Transport(peername=("10.0.0.1", 1234))
    unverified = Transport(peername=("::1", 1, 0, 0), peercert={})
    verified = Transport(peername=("::1", 1, 0, 0), peercert=FACTS, ssl_object=Transport())

    assert read_peer(plain) == Peer("10.0.0.1")
    assert read_peer(unverified) == Peer("::1")
    assert read_peer(verified) == Peer("::1", read_certificate(FACTS, DER))
    assert read_peer(Transport()) == Peer("")
