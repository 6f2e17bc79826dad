# SPDX-License-Identifier: Apache-2.0
"""Addresses, documents and listings of the small client, without a server."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.client.kserve import http_messages
from pytriton.client.kserve.address import AddressError, metrics_address, parse_address
from pytriton.client.kserve.errors import (
    AskError,
    RestrictedError,
    ServerRefusedError,
    UnansweredError,
    refusal,
)
from pytriton.client.kserve.records import ModelQuery, NamedArray
from pytriton.tools.commands import model_cards


@pytest.mark.parametrize(
    "text, protocol, expected",
    [
        ("localhost", None, "http://localhost:8000"),
        ("localhost", "grpc", "grpc://localhost:8001"),
        ("localhost:9", "grpc", "grpc://localhost:9"),
        ("grpc://host", None, "grpc://host:8001"),
        ("grpcs://host:5", None, "grpcs://host:5"),
        ("https://models.example.com", None, "https://models.example.com:443"),
        ("https://models.example.com:8443/team/", None, "https://models.example.com:8443/team"),
        ("[::1]:8000", None, "http://[::1]:8000"),
        ("https://[::1]", None, "https://[::1]:443"),
    ],
)
def test_address_is_read(text, protocol, expected):
    assert str(parse_address(text, protocol)) == expected


@pytest.mark.parametrize(
    "text, protocol", [("ftp://host", None), ("", None), ("host:x", None), ("grpc://host", "http")]
)
def test_address_that_means_nothing_is_refused(text, protocol):
    with pytest.raises(AddressError, match="expected an address"):
        parse_address(text, protocol)


@pytest.mark.parametrize(
    "server, port",
    [("localhost:8000", 8002), ("grpc://h:8001", 8002), ("h:9000", 9002), ("grpc://h:9001", 9002)],
)
def test_metrics_are_expected_where_the_defaults_have_them(server, port):
    assert metrics_address(parse_address(server)).port == port


def test_refusals_say_which_header_is_missing():
    token = refusal("This API is restricted, expecting header 'triton-access-token'")
    other = refusal("This protocol is restricted, expecting header 'triton-grpc-protocol-key'")

    assert isinstance(token, RestrictedError)
    assert "--token" in str(token)
    assert "give it with -H triton-grpc-protocol-key:VALUE" in str(other)
    assert isinstance(refusal("no"), ServerRefusedError)


@pytest.mark.parametrize(
    "declared, count, expected",
    [
        ((-1, 1), 3, (3, 1)),
        ((-1,), 3, (3,)),
        ((1,), 1, (1,)),
        ((-1, -1), 3, (1, 3)),
        ((2, 2), 4, (2, 2)),
        ((2,), 4, None),
        ((2,), 3, None),
        ((-1,), 0, None),
    ],
)
def test_shape_of_generate_is_foreseen(declared, count, expected):
    assert http_messages.generated_shape(declared, count) == expected


def test_stream_over_http_refuses_a_shape_that_it_would_change():
    metadata = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]}
    tensor = NamedArray("x", "FP32", np.zeros((2, 2), np.float32))

    with pytest.raises(AskError, match=r"the shape \[2, 2\]: ask over gRPC"):
        http_messages.generate_body(ModelQuery("m", "", (tensor,)), metadata)


def test_server_without_binary_tensors_gets_json():
    texts = NamedArray("x", "BYTES", np.array([b"a"], object))
    encoded = http_messages.encode(ModelQuery("m", "", (texts,), ("y",)), is_binary=False)

    assert encoded.head_length is None
    assert encoded.body == (
        b'{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}], '
        b'"outputs": [{"name": "y"}]}'
    )


class FakeServer:
    """Answers as the index of a repository with all kinds of states."""

    def __init__(self, index):
        self._index = index

    def index(self):
        if isinstance(self._index, Exception):
            raise self._index
        return self._index

    def model_metadata(self, model, version):
        return {"name": model, "versions": ["1", "3"], "platform": "ensemble", "inputs": []}

    def model_config(self, model, version):
        steps = [{"model_name": "first"}, {"model_name": "second"}]
        return {"ensemble_scheduling": {"step": steps}, "sequence_batching": {}}


class FakeMetrics:
    def __init__(self, text):
        self._text = text

    def get_document(self, path):
        raise UnansweredError("no page")

    def get_text(self, path):
        return self._text


def connection(index, metrics=""):
    where = parse_address("localhost")
    return model_cards.ServerClients(where, FakeServer(index), where, FakeMetrics(metrics))


def test_states_and_reasons_are_those_of_the_index():
    index = [
        {"name": "broken", "version": "2", "state": "UNAVAILABLE", "reason": "no file"},
        {"name": "all", "version": "3", "state": "READY"},
        {"name": "never"},
    ]
    listing = model_cards.list_models(connection(index))

    assert [(card.name, card.version, model_cards.state_text(card)) for card in listing.models] == [
        ("all", "3", "READY"),
        ("broken", "2", "UNAVAILABLE (no file)"),
        ("never", "", "UNLOADED"),
    ]
    assert listing.models[0].steps == ("first", "second")
    assert listing.models[0].is_sequence
    assert listing.notes == ()


def test_model_that_is_not_ready_is_said_with_its_reason():
    index = [{"name": "broken", "version": "2", "state": "UNAVAILABLE", "reason": "no file"}]
    error = model_cards.unknown_model(
        connection(index), "broken", "", ServerRefusedError("unknown model")
    )

    told = "Model 'broken' is not ready on http://localhost:8000: version 2 UNAVAILABLE (no file)."
    assert str(error) == told


def test_names_come_from_metrics_where_the_index_is_restricted():
    text = (
        'nv_inference_count{model="a",version="1"} 3\n'
        'nv_inference_count{version="2",model="b"} 3\n'
        'nv_gpu_power{gpu="x"} 1\n'
    )
    listing = model_cards.list_models(connection(RestrictedError("token"), text), describes=False)

    assert [(card.name, card.version) for card in listing.models] == [("a", "1"), ("b", "2")]
    assert "needs the access token (--token)" in listing.notes[0]


@pytest.mark.parametrize("name", ["admin-key", "triton-grpc-protocol-admin-key"])
def test_restricted_index_says_which_header_it_needs(name):
    text = 'nv_inference_count{model="a",version="1"} 3\n'
    error = refusal(f"This API is restricted, expecting header '{name}'")
    listing = model_cards.list_models(connection(error, text), describes=False)

    assert str(error).endswith(f"give it with -H {name}:VALUE.")
    assert f"needs the header '{name}' (-H {name}:VALUE);" in listing.notes[0]


def test_model_of_the_page_that_is_not_loaded_is_not_asked_for(monkeypatch):
    document = {"models": [{"name": "a", "version": "", "state": "", "reason": ""}]}
    monkeypatch.setattr(FakeMetrics, "get_document", lambda self, path: document)
    listing = model_cards.list_models(connection(RestrictedError("token")))

    assert [model_cards.state_text(card) for card in listing.models] == ["UNLOADED"]


def test_model_that_failed_is_said_with_its_reason_where_the_index_is_restricted():
    text = 'nv_inference_count{model="a",version="1"} 3\n'
    refused = ServerRefusedError("'b' has no available versions (version 1: no file)")
    error = model_cards.unknown_model(connection(RestrictedError("token"), text), "b", "", refused)

    assert str(error) == f"http://localhost:8000 says: {refused}."
