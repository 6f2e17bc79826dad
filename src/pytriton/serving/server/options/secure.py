# SPDX-License-Identifier: Apache-2.0
"""`--secure`: safe values for what nobody chose, and what a server needs before it starts.

An operator may choose otherwise for each of them; the log says what that leaves open. What has no
safe value has to be given: certificates, a policy, and who signs models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytriton.base.sandbox import STRICT
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.flags import Flags

if TYPE_CHECKING:
    from pytriton.serving.server.options.endpoints import EndpointOptions
    from pytriton.serving.server.options.server_options import ServerOptions

SAFE_CONNECTIONS = 256  # of one address to one port
_SIGNERS = ("model_signing_key", "model_signing_certificates", "model_signing_identity")


def with_safe_values(config: Mapping[str, Any], *, is_command: bool) -> Mapping[str, Any]:
    """Returns the settings with safe values for those that are not given, if `secure` is set."""
    given = {name: value for name, value in config.items() if value is not None}
    if not Flags({"secure": given.get("secure")}).value("secure"):
        return config
    safe = {
        "allow_client_shm": False,
        "hide_exceptions": True,
        "max_connections_per_address": SAFE_CONNECTIONS,
        "sandbox": STRICT,
    }
    if is_command and any(given.get(name) for name in _SIGNERS):
        safe["require_signed_models"] = True
    return {**safe, **given}


def check_secure(
    options: ServerOptions, config: Mapping[str, Any], *, is_command: bool
) -> tuple[str, ...]:
    """Returns what was chosen to be less safe, for the log.

    Raises:
        PyTritonValidationError: Something that has no safe value is missing; the text has all.
    """
    if not options.secure:
        return ()
    signs = options.repository.signing.is_required or not is_command
    chose_unsigned = config.get("require_signed_models") is not None
    missing = list(_open_ports(options))
    if options.access.config is None:
        missing.append("--auth-config: a policy that says who may do what")
    if not signs and not chose_unsigned:
        missing.append(
            "--model-signing-key, --model-signing-certificates or --model-signing-identity: who "
            "signs models (or --require-signed-models=false)"
        )
    if missing:
        lines = "\n".join(f"  {each}" for each in missing)
        raise PyTritonValidationError(f"--secure needs more before a server starts:\n{lines}")
    return tuple(_looser_choices(options, signs=signs))


def _open_ports(options: ServerOptions) -> Iterator[str]:
    """Returns what encrypts the ports that other machines reach."""
    endpoints: dict[str, tuple[EndpointOptions, object]] = {
        "http": (options.http, options.tls),
        "grpc": (options.grpc, options.grpc_tls),
        "metrics": (options.metrics, options.tls),
        "sagemaker": (options.sagemaker, options.tls),
        "vertex_ai": (options.vertex_ai, options.tls),
    }
    plain = [
        f"{name.replace('_', '-')} on {endpoint.address}"
        for name, (endpoint, tls) in endpoints.items()
        if endpoint.allow and tls is None and not endpoint.is_loopback
    ]
    if plain:
        yield (
            f"--tls-cert and --tls-key: these ports would not be encrypted: {', '.join(plain)} (or "
            "let them listen on 127.0.0.1)"
        )


def _looser_choices(options: ServerOptions, *, signs: bool) -> Iterator[str]:
    if options.sandbox.default.mode != STRICT:
        yield f"--sandbox={options.sandbox.default.mode}: models may do more than they need"
    if options.sandbox.allows_off:
        yield "--sandbox-allow=off: models may run without a sandbox"
    if not signs:
        yield "--require-signed-models=false: whoever can write to a repository runs code here"
    if options.allow_client_shared_memory:
        yield "--allow-client-shm: clients on this machine name memory that the server maps"
    if not options.hide_exceptions:
        yield "--hide-exceptions=false: clients get texts of exceptions, with values and paths"
    if not options.limits.max_connections_per_address:
        yield "--max-connections-per-address=0: one client can take all connections"
    if options.repository.allow_links:
        yield "--allow-repository-links: models may be anywhere on this machine"
