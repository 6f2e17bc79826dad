# SPDX-License-Identifier: Apache-2.0
"""How many wrong signatures of tokens are looked at, and who has to wait for that."""

from __future__ import annotations

import logging
import time

import pytest

from pytriton.serving.server.access.control import AccessControl, Grant
from pytriton.serving.server.access.credentials import Peer
from pytriton.serving.server.access.decisions import Reason
from pytriton.serving.server.access.keys import make_key
from pytriton.serving.server.access.policy import Issuer, Policy, Rights
from pytriton.serving.server.access.signature_budget import BURST_S, SHARE, SignatureBudget
from tests.access_policies import AUDIENCE, TokenMaker

CHECK_S = BURST_S / 5
AT_ONCE = 5
NOW_S = 1_000_000.0


class Meter:
    """The time of a processor, of which each look takes as long as a check."""

    def __init__(self, check_s=CHECK_S):
        self.spent_s = 0.0
        self.check_s = check_s

    def __call__(self):
        self.spent_s += self.check_s
        return self.spent_s


class Checks:
    """Runs checks, and counts them."""

    def __init__(self, check_s=CHECK_S):
        self.count = 0
        self.budget = SignatureBudget(Meter(check_s))

    def run(self, now_s=NOW_S, *, is_right=False, is_known=False):
        def check():
            self.count += 1
            return is_right

        return self.budget.run(is_known, now_s, check)


def test_wrong_signatures_have_a_part_of_the_time():
    checks = Checks()
    assert [checks.run() for _ in range(8)] == [False] * AT_ONCE + [None] * 3
    assert checks.count == AT_ONCE


def test_flood_gets_its_share_in_the_long_run():
    checks = Checks()
    for step in range(100_000):  # ten seconds, with ten tries in each millisecond
        checks.run(NOW_S + step / 10_000)

    allowed = AT_ONCE + SHARE * 10 / CHECK_S
    assert allowed - 2 <= checks.count <= allowed + 2


def test_check_that_took_long_is_paid_for_before_the_next():
    checks = Checks(check_s=10 * BURST_S)
    wait_s = 9 * BURST_S / SHARE
    first, too_soon = checks.run(), checks.run(NOW_S + wait_s - 0.1)

    assert (first, too_soon) == (False, None)
    assert checks.run(NOW_S + wait_s + 0.1) is False


def test_right_signatures_take_nothing():
    checks = Checks()
    assert [checks.run(is_right=True) for _ in range(100)] == [True] * 100
    assert checks.run() is False


def test_flood_of_strangers_leaves_the_part_of_known_addresses():
    checks = Checks()
    for _ in range(10):
        checks.run()
    known = [checks.run(is_known=True) for _ in range(AT_ONCE + 1)]

    assert known == [False] * AT_ONCE + [None]


def test_check_counts_although_the_clock_of_the_processor_does_not_move():
    checks = Checks(check_s=0.0)
    for _ in range(100_000):
        checks.run()

    assert checks.count < 1000


def test_clock_that_is_set_back_gives_nothing_away():
    checks = Checks()
    for _ in range(AT_ONCE):
        checks.run()

    assert checks.run(NOW_S - 3600) is None
    assert checks.run(NOW_S - 3600 + 2 * CHECK_S / SHARE) is False


# With a policy


@pytest.fixture(scope="module")
def maker():
    return TokenMaker()


@pytest.fixture(scope="module")
def stranger():
    """It has the same ids as the issuer, but other keys."""
    return TokenMaker()


class Client:
    """A connection of an address."""

    def __init__(self, address):
        self.peer = Peer(address)


class Setting:
    """A policy with an issuer, and clients that send tokens."""

    def __init__(self, maker, limit=10):
        self.now_s = time.time()
        issuer = Issuer(
            issuer=maker.issuer,
            audience=(AUDIENCE,),
            principals=(("*@example.com", "team"),),
            jwks=maker.jwks(),
        )
        self.key, record = make_key("team", self.now_s)
        policy = Policy(
            principals={"team": Rights(apis=("inference",))},
            issuers=(issuer,),
            keys={record.id: record},
            max_failures_per_minute=limit,
        )
        budget = SignatureBudget(Meter())
        self.control = AccessControl(policy, "own", lambda: self.now_s, signatures=budget)
        self.numbers = iter(range(1_000_000))

    def send(self, token, address="203.0.113.1"):
        headers = {b"authorization": f"Bearer {token}".encode()}
        found = self.control.identify(headers.get, Client(address))
        return found.name if isinstance(found, Grant) else found.reason

    def flood(self, stranger, count):
        """Wrong tokens, each of another address."""
        token = stranger.token()
        return [
            self.send(token, f"198.{number >> 16}.{number >> 8 & 255}.{number & 255}")
            for number in (next(self.numbers) for _ in range(count))
        ]


def test_flood_of_many_addresses_has_few_signatures_looked_at(maker, stranger):
    setting = Setting(maker)
    reasons = setting.flood(stranger, 100)

    assert reasons == [Reason.BAD_SIGNATURE] * AT_ONCE + [Reason.SIGNATURE_LIMIT] * 95
    assert setting.control.refusals == {"bad_signature": AT_ONCE, "signature_limit": 95}


def test_flood_of_one_address_is_bounded_where_addresses_are_not_slowed_down(maker, stranger):
    setting = Setting(maker, limit=0)
    reasons = [setting.send(stranger.token()) for _ in range(20)]

    assert reasons == [Reason.BAD_SIGNATURE] * AT_ONCE + [Reason.SIGNATURE_LIMIT] * 15


def test_known_tokens_and_keys_are_accepted_beside_a_flood(maker, stranger):
    setting = Setting(maker)
    token = maker.token()
    before = setting.send(token)
    setting.flood(stranger, 20)

    assert before == setting.send(token) == "team"
    assert setting.send(setting.key, "203.0.113.9") == "team"


def test_new_token_beside_a_flood_waits_unless_its_address_is_known(maker, stranger):
    setting = Setting(maker)
    setting.send(setting.key, "203.0.113.1")
    setting.flood(stranger, 20)
    of_known = setting.send(maker.token(jti="1"), "203.0.113.1")
    of_unknown = setting.send(maker.token(jti="2"), "203.0.113.2")
    setting.now_s += 1

    assert of_known == "team"
    assert of_unknown is Reason.SIGNATURE_LIMIT
    assert setting.send(maker.token(jti="2"), "203.0.113.2") == "team"


def test_what_nobody_has_looked_at_does_not_slow_down_its_address(maker, stranger):
    setting = Setting(maker, limit=1)
    setting.flood(stranger, 20)
    reasons = [setting.send(maker.token(), "203.0.113.2") for _ in range(3)]
    setting.now_s += 1

    assert reasons == [Reason.SIGNATURE_LIMIT] * 3
    assert setting.send(maker.token(), "203.0.113.2") == "team"


def test_flood_has_one_line_in_the_log_for_what_was_not_looked_at(maker, stranger, caplog):
    setting = Setting(maker)
    with caplog.at_level(logging.WARNING):
        setting.flood(stranger, 50)

    assert len([line for line in caplog.messages if "signature_limit" in line]) == 1
