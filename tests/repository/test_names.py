# SPDX-License-Identifier: Apache-2.0
"""What names of models mean if each repository is a namespace. Pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.model_spec import identifier_of
from pytriton.serving.repository.reading.layout import ModelNames

NAMES = ModelNames(["/a", "/b", "/c"])


def find(name: str, namespace: str, *known: str) -> str | None:
    return NAMES.find(name, namespace, known.__contains__)


def test_identifier_without_namespaces_is_the_name():
    names = ModelNames()

    assert names.split("a::m") == ("", "a::m")
    assert names.identifiers("m") == ["m"]
    assert names.find("m", "", ["m"].__contains__) == "m"
    assert names.find("m", "", [].__contains__) is None


def test_identifier_has_both_names():
    assert NAMES.split("/b::m") == ("/b", "m")
    assert NAMES.split("/b::m::n") == ("/b", "m::n")
    assert NAMES.split("sent") == ("", "sent")


def test_models_of_a_name_are_in_all_namespaces_or_in_none():
    assert NAMES.identifiers("m") == ["m", "/a::m", "/b::m", "/c::m"]
    assert NAMES.among("m", {"/c::m", "/a::m", "/a::n"}) == ["/a::m", "/c::m"]


def test_model_of_the_own_namespace_comes_first():
    assert find("m", "/b", "/a::m", "/b::m", "m") == "/b::m"


def test_only_model_of_other_namespaces_is_found():
    assert find("m", "/a", "/b::m", "/b::n") == "/b::m"


@pytest.mark.parametrize("known", [(), ("/b::m", "/c::m"), ("m", "/b::m")])
def test_no_model_or_several_are_no_model(known):
    assert find("m", "/a", *known) is None


_namespaces = st.lists(
    st.text("/ab:", min_size=1).filter(lambda text: "::" not in text), max_size=4
)
_names = st.text("mn:.", min_size=1)


@given(_namespaces, _names)
def test_every_identifier_is_split_into_what_it_was_made_of(namespaces, name):
    names = ModelNames(namespaces)

    for namespace in namespaces:
        # "/a" followed by ":" and "/a:" cannot be told apart; no two repositories are called so.
        if not any(
            identifier_of(namespace, name).startswith(identifier_of(other, ""))
            for other in namespaces
            if other != namespace
        ):
            assert names.split(identifier_of(namespace, name)) == (namespace, name)


@given(st.sets(st.sampled_from(NAMES.identifiers("m"))), st.sampled_from(["", "/a", "/b", "/z"]))
def test_what_is_found_is_known_and_unambiguous(known, namespace):
    found = NAMES.find("m", namespace, known.__contains__)

    own = identifier_of(namespace, "m")
    if own in known:
        assert found == own
    elif len(known) == 1:
        assert {found} == known
    else:
        assert found is None
