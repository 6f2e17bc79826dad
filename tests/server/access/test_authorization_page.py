# SPDX-License-Identifier: Apache-2.0
"""What the page about policies shows is right: its policies, its members, its metrics."""

from __future__ import annotations

import pathlib
import re

import msgspec
import pytest

from pytriton.base.quotas import Quota
from pytriton.serving.server.access.decisions import Reason
from pytriton.serving.server.access.policy import (
    APIS,
    CertificateRule,
    Issuer,
    Rights,
    parse_policy,
)

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "authorization.md"
TEXT = PAGE.read_text(encoding="utf-8")
POLICIES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("text", POLICIES)
def test_policy_of_the_page_is_one(text):
    assert parse_policy(text, "auth.toml", is_json=False).policy.principals


def test_page_has_policies():
    assert len(POLICIES) == 5


def test_page_has_every_group():
    rows = " ".join(line for line in TEXT.splitlines() if line.startswith("| `"))

    assert not [api for api in APIS if f"`{api}`" not in rows]


def test_page_has_every_member():
    records = (Rights, Issuer, CertificateRule, Quota)
    names = {field.name for record in records for field in msgspec.structs.fields(record)}
    names |= {"weight", "quotas", "anonymous", "keys_file", "max_failures_per_minute", "jwks_file"}

    assert not [name for name in names - {"jwks"} if not re.search(rf"\b{name}\b", TEXT)]


def test_page_has_every_reason_of_the_metric():
    (row,) = [line for line in TEXT.splitlines() if "`nv_access_refusal_count`" in line]

    assert set(re.findall(r"`(\w+)`", row)) - {"nv_access_refusal_count", "reason"} == {
        reason.value for reason in Reason
    }
