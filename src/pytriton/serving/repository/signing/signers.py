# SPDX-License-Identifier: Apache-2.0
"""Whose signatures of models count: keys, certificates and identities, from settings or an agent.

It is pure, but for the question whether files exist. `verifier` beside it checks signatures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pytriton.base.errors import InvalidArgumentError

DEFAULT_SIGNATURE = "model.sig"
AGENT = "signature"  # the name of the repository agent
# The parameters of the agent, with the fields of `Signers` that they fill.
_FIELDS = {
    "key": "keys",
    "certificates": "certificates",
    "identity": "identity",
    "issuer": "issuer",
    "trust_root": "trust_root",
}
_PATH = "signature"  # the parameter with the path of the signature
_LISTS = frozenset({"keys", "certificates"})
_FILES = frozenset({"key", "certificates", "trust_root"})


class Signers(msgspec.Struct, frozen=True, kw_only=True):
    """Who may sign models; a signature by one of them is enough."""

    keys: tuple[str, ...] = ()  # files with a public key in PEM
    certificates: tuple[str, ...] = ()  # files with root certificates in PEM
    identity: str = ""  # of a person or a workflow, as sigstore knows it
    issuer: str = ""  # who has confirmed the identity
    trust_root: str = ""  # a file with the keys and certificates of a sigstore instance

    @property
    def is_empty(self) -> bool:
        """Whether it names nobody."""
        return self == Signers()

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are named."""
        return (*self.keys, *self.certificates, *((self.trust_root,) if self.trust_root else ()))

    @property
    def words(self) -> str:
        """The signers, for people."""
        parts = [f"the key '{key}'" for key in self.keys]
        parts += [f"a certificate of '{file}'" for file in self.certificates]
        if self.identity:
            parts.append(f"'{self.identity}' of '{self.issuer}'")
        return " or ".join(parts)

    def problem(self, exists: Callable[[str], bool] = os.path.isfile) -> str:
        """Returns what is wrong with them; an empty text if nothing is."""
        sigstore = (self.identity, self.issuer, self.trust_root)
        if any(sigstore) and not all(sigstore):
            return (
                "expected an identity, its issuer and a trust root together, got "
                f"identity '{self.identity}', issuer '{self.issuer}', "
                f"trust root '{self.trust_root}'"
            )
        for file in self.files:
            if not exists(file):
                return f"expected a file with a key or certificates, got '{file}', which is none"
        return ""


class SigningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server's settings of signed models."""

    is_required: bool = False  # a model without a valid signature is not loaded
    signers: Signers = Signers()


class AgentDemand(msgspec.Struct, frozen=True):
    """What the agent of a model asks for."""

    signers: Signers
    signature: str  # relative to the model's folder


def read_agent(parameters: Mapping[str, str], default: Signers) -> AgentDemand:
    """Read the parameters of the agent; without signers, those of the server count.

    Keys and certificates in the model's own folder would prove nothing, so paths are absolute.
    """
    unknown = sorted(parameters.keys() - _FIELDS.keys() - {_PATH})
    if unknown:
        known = ", ".join([*_FIELDS, _PATH])
        raise InvalidArgumentError(
            f"expected parameters of agent '{AGENT}' among {known}, got '{unknown[0]}'"
        )
    fields = {}
    for name, field in _FIELDS.items():
        value = parameters.get(name, "")
        if value and name in _FILES and not Path(value).is_absolute():
            raise InvalidArgumentError(
                f"expected an absolute path as parameter '{name}' of agent '{AGENT}', got '{value}'"
            )
        if value:
            fields[field] = (value,) if field in _LISTS else value
    signers = msgspec.convert(fields, Signers) if fields else default
    if signers.is_empty:
        raise InvalidArgumentError(
            f"expected parameters of agent '{AGENT}' that say who may sign the model, or the "
            "options --model-signing-... of the server, got neither"
        )
    problem = signers.problem()
    if problem:
        raise InvalidArgumentError(f"agent '{AGENT}': {problem}")
    return AgentDemand(signers, parameters.get(_PATH) or DEFAULT_SIGNATURE)
