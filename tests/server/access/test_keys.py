# SPDX-License-Identifier: Apache-2.0
"""Keys of clients, what is stored of them, and the document they are in."""

from __future__ import annotations

import json
import math

import pytest

from pytriton.serving.server.access.keys import (
    KeysError,
    has_secret,
    keys_text,
    make_key,
    parse_keys,
    split_key,
)


def test_key_is_found_by_its_id_and_has_its_secret():
    key, record = make_key("team-a", 1000.5)
    key_id, secret = split_key(key)

    assert key_id == record.id
    assert has_secret(record, secret)
    assert not has_secret(record, secret[:-1] + ("A" if secret[-1] != "A" else "B"))
    assert record.until_s == math.inf


def test_key_that_nobody_stored_has_no_secret():
    _, secret = split_key(make_key("team-a", 0)[0])

    assert not has_secret(None, secret)


def test_keys_are_never_the_same():
    assert len({make_key("a", 0)[0] for _ in range(100)}) == 100


@pytest.mark.parametrize("change", [lambda key: key[:-1], lambda key: key + "A", str.upper])
def test_key_that_is_not_whole_is_none(change):
    assert split_key(change(make_key("a", 0)[0])) is None


def test_document_has_hashes_and_no_secrets():
    key, record = make_key("team-a", 1_000_000, 2_000_000.0, "laptop")

    text = keys_text([record])

    assert split_key(key)[1] not in text
    assert parse_keys(text, "keys.json") == {record.id: record}


@pytest.mark.parametrize(
    "change,problem",
    [
        ({"id": "x"}, "keys[0].id: expected 12 hexadecimal digits"),
        ({"sha256": "x"}, "keys[0].sha256: expected 64 hexadecimal digits"),
        ({"principal": ""}, "keys[0].principal: expected the name of a principal"),
        ({"expires": "soon"}, "keys[0].expires: expected a time such as 2026-12-31T00:00:00Z"),
        ({"revoked": True}, "keys[0].revoked: expected a text"),
        ({"revokd": "2026-12-31T00:00:00Z"}, "got 'revokd'"),
    ],
)
def test_document_that_is_wrong_is_refused_with_its_member(change, problem):
    document = json.loads(keys_text([make_key("a", 0)[1]]))
    document["keys"][0].update(change)

    with pytest.raises(KeysError, match=r"^keys\.json: keys\[0\]") as caught:
        parse_keys(json.dumps(document), "keys.json")

    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"keys": 1}', '{"keys": [1]}'])
def test_document_of_another_form_is_refused(text):
    with pytest.raises(KeysError):
        parse_keys(text, "keys.json")


def test_document_with_one_id_twice_is_refused():
    record = make_key("a", 0)[1]

    with pytest.raises(KeysError, match="two keys have the id"):
        parse_keys(keys_text([record, record]), "keys.json")
