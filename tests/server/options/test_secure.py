# SPDX-License-Identifier: Apache-2.0
"""What `--secure` sets, asks for and tells."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.server_options import ServerOptions

ENOUGH = {
    "secure": True,
    "model_repository": ["/models"],
    "tls_cert": "cert.pem",
    "tls_key": "key.pem",
    "auth_config": "auth.toml",
    "require_signed_models": False,
}


def read(is_command=True, **changes):
    values = {name: value for name, value in {**ENOUGH, **changes}.items() if value is not None}
    return ServerOptions.from_triton_config(values, is_command=is_command)


def test_values_that_nobody_chose_are_safe():
    options = read()

    assert options.sandbox.is_strict
    assert options.limits.max_connections_per_address == 256
    assert options.hide_exceptions
    assert not options.allow_client_shared_memory


def test_bound_servers_are_as_safe():
    options = read(is_command=False, require_signed_models=None, model_repository=None)

    assert options.sandbox.is_strict
    assert not options.allow_client_shared_memory
    assert options.secure_notes == ()


def test_signatures_are_required_where_somebody_signs(tmp_path):
    key = tmp_path / "key.pub"
    key.write_text("a key")
    options = read(model_signing_key=[str(key)], require_signed_models=None)

    assert options.repository.signing.is_required


def test_everything_that_is_missing_is_told_at_once():
    with pytest.raises(PyTritonValidationError) as caught:
        read(tls_cert=None, tls_key=None, auth_config=None, require_signed_models=None)

    text = str(caught.value)
    assert "http on 0.0.0.0, grpc on 0.0.0.0, metrics on 0.0.0.0" in text
    assert "--tls-cert" in text
    assert "--auth-config" in text
    assert "--model-signing-key" in text


def test_ports_of_this_machine_need_no_encryption():
    places = {"http_address": "127.0.0.1", "grpc_address": "localhost"}
    assert read(tls_cert=None, tls_key=None, **places).tls is None


def test_one_port_that_others_reach_needs_encryption():
    with pytest.raises(PyTritonValidationError, match=r"encrypted: grpc on 0\.0\.0\.0 "):
        read(tls_cert=None, tls_key=None, http_address="127.0.0.1")


@pytest.mark.parametrize(
    "choice, told",
    [
        ({}, "--require-signed-models=false"),
        ({"sandbox": "off"}, "--sandbox=off"),
        ({"sandbox": "on"}, "--sandbox=on"),
        ({"sandbox_allow": ["off"]}, "--sandbox-allow=off"),
        ({"allow_client_shm": True}, "--allow-client-shm"),
        ({"max_connections_per_address": 0}, "--max-connections-per-address=0"),
        ({"hide_exceptions": False}, "--hide-exceptions=false"),
        ({"allow_repository_links": True}, "--allow-repository-links"),
    ],
)
def test_choices_that_are_less_safe_are_told(choice, told):
    assert any(note.startswith(told) for note in read(**choice).secure_notes)


def test_without_the_option_nothing_changes():
    options = ServerOptions.from_triton_config({"model_repository": ["/m"]}, is_command=True)

    assert not options.sandbox.is_strict
    assert options.limits.max_connections_per_address == 0
    assert not options.hide_exceptions
    assert options.secure_notes == ()
