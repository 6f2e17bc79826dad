# SPDX-License-Identifier: Apache-2.0
"""The addresses of model repositories in object stores, and the credentials to reach them.

The forms of both are Triton's. Nothing here is written to a log, and no error repeats a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from pytriton.base.errors import InvalidArgumentError

S3, GCS, AZURE = "s3", "gs", "as"
# The variables with the folders for local copies, by scheme.
MOUNT_DIRECTORIES = {
    S3: "TRITON_AWS_MOUNT_DIRECTORY",
    GCS: "TRITON_GCS_MOUNT_DIRECTORY",
    AZURE: "TRITON_AZURE_MOUNT_DIRECTORY",
}

# A `pathlib.Path` of an address has lost a slash wherever there were two.
_ADDRESS = re.compile(r"(?P<scheme>s3|gs|as):/{1,2}(?P<rest>.*)", re.DOTALL)
_ENDPOINT = re.compile(
    r"(?:(?P<protocol>https?):/{1,2}(?P<named>[^/]+)|(?P<host>[^/]+:[0-9]+))(?:/(?P<rest>.*))?"
)
_FORMS = {
    S3: "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
    GCS: "gs://bucket/path",
    AZURE: "as://account/container/path",
}


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where a repository is."""

    address: str  # as users write it, for logs and errors
    scheme: str  # s3, gs or as
    root: str  # the bucket or container, and the path in it
    endpoint: str = ""  # of a private instance of S3
    account: str = ""  # of Azure


def is_remote(path: str) -> bool:
    """Returns whether a repository is in an object store, not in a local folder."""
    return _ADDRESS.fullmatch(path) is not None


def read_location(path: str) -> Location:
    """Read the address of a repository.

    Errors do not repeat passwords.
    """
    match = _ADDRESS.fullmatch(path)
    if match is None:
        raise InvalidArgumentError(f"expected an address of an object store, got '{path}'")
    scheme, rest = match["scheme"], match["rest"]
    if "@" in rest:
        raise InvalidArgumentError(
            f"a model repository of {scheme}:// must have no user or password in its address; "
            "give credentials in environment variables or in a credential file"
        )
    if scheme == S3:
        return _read_s3(rest)
    first, parts = _split(scheme, rest, 2 if scheme == AZURE else 1)
    if scheme == GCS:
        root = "/".join((first, *parts))
        return Location(address=f"gs://{root}", scheme=GCS, root=root)
    root = "/".join(parts)
    return Location(address=f"as://{first}/{root}", scheme=AZURE, root=root, account=first)


def _read_s3(rest: str) -> Location:
    match = _ENDPOINT.fullmatch(rest)
    if match is None:
        bucket, parts = _split(S3, rest, 1)
        root = "/".join((bucket, *parts))
        return Location(address=f"s3://{root}", scheme=S3, root=root)
    bucket, parts = _split(S3, match["rest"] or "", 1, given=rest)
    root = "/".join((bucket, *parts))
    host = match["named"] or match["host"]
    # Without a protocol, Triton talks to a private instance over HTTP.
    endpoint = f"{match['protocol'] or 'http'}://{host}"
    written = endpoint if match["protocol"] else host
    return Location(address=f"s3://{written}/{root}", scheme=S3, root=root, endpoint=endpoint)


def _split(
    scheme: str, path: str, least: int, *, given: str | None = None
) -> tuple[str, list[str]]:
    """Returns the first name of a path and the others; slashes too many do not count.

    An error shows what was given, if that is more than the path.
    """
    parts = [part for part in path.split("/") if part]
    if len(parts) < least or any(part in (".", "..") or "\0" in part for part in parts):
        address = f"{scheme}://{path if given is None else given}"
        raise InvalidArgumentError(
            f"expected a model repository of the form {_FORMS[scheme]}, got '{address}'"
        )
    return parts[0], parts[1:]


CREDENTIAL_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"

_MANAGED, _DEFAULT = "managed_identity", "default"
# Members of a credential, by scheme, with the environment variables that stand for them.
_MEMBERS = {
    S3: {
        "key_id": "AWS_ACCESS_KEY_ID",
        "secret_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
        "region": "AWS_DEFAULT_REGION",
        "profile": "AWS_PROFILE",
    },
    AZURE: {
        "account_str": "AZURE_STORAGE_ACCOUNT",
        "account_key": "AZURE_STORAGE_KEY",
        "auth_type": "AZURE_STORAGE_AUTH_TYPE",
        "client_id": "AZURE_STORAGE_CLIENT_ID",
    },
}
_SECRET = frozenset({"key_id", "secret_key", "session_token", "account_key"})

# The credentials of a file, by scheme and by the start of the addresses that they are for.
Credentials = Mapping[str, Mapping[str, Any]]


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a file system of `fsspec`. They are not printable."""

    options: dict[str, Any]
    # A managed identity of Azure, which needs an object of its library; "" is the machine's own.
    identity: str | None = None
    secrets: tuple[str, ...] = ()  # texts that no message may show

    def __repr__(self) -> str:
        return f"<Access with {', '.join(sorted(self.options))}>"


def read_credentials(environment: Mapping[str, str]) -> Credentials | None:
    """Read the credential file that the environment names; None if it names none."""
    path = environment.get(CREDENTIAL_FILE)
    if not path:
        return None
    try:
        document = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise InvalidArgumentError(
            f"{CREDENTIAL_FILE}: '{path}' cannot be read: {error.strerror}"
        ) from None
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"{CREDENTIAL_FILE}: '{path}' is not JSON: line {error.lineno} column {error.colno}"
        ) from None
    return _checked(document, path)


def _checked(document: Any, path: str) -> Credentials:
    what = f"{CREDENTIAL_FILE}: '{path}'"
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"{what} must be a JSON object with the members s3, gs and as")
    for scheme in (S3, GCS, AZURE):
        named = document.get(scheme, {})
        if not isinstance(named, dict):
            raise InvalidArgumentError(f"{what}: member '{scheme}' must be a JSON object")
        for name, credential in named.items():
            _check(credential, scheme, f"{what}: member '{scheme}', credential '{name}'")
    return document


def _check(credential: Any, scheme: str, what: str) -> None:
    if scheme == GCS:
        if not isinstance(credential, str):
            raise InvalidArgumentError(f"{what} must be the path of a file")
        return
    if not isinstance(credential, dict):
        raise InvalidArgumentError(f"{what} must be a JSON object")
    for member in _MEMBERS[scheme]:
        if not isinstance(credential.get(member, ""), str):
            raise InvalidArgumentError(f"{what}: member '{member}' must be a text")


def choose_access(
    location: Location, credentials: Credentials | None, environment: Mapping[str, str]
) -> Access:
    """Returns how to reach a repository.

    Of the credentials of a file, the one with the longest name that the address begins with is
    taken. Without one the environment counts.
    """
    credential = _longest(location, credentials)
    if location.scheme == GCS:
        # Without a file, gcsfs looks in the same places as Triton, and reads public buckets.
        return Access(options={"token": credential} if credential else {})
    members = _MEMBERS[location.scheme]
    if credential is None:
        values = {name: environment.get(variable, "") for name, variable in members.items()}
    else:
        values = {name: credential.get(name, "") for name in members}
    secrets = tuple(values[name] for name in sorted(_SECRET & values.keys()) if values[name])
    if location.scheme == S3:
        return Access(
            options=_s3_options(location, values, is_own=credential is not None), secrets=secrets
        )
    return _azure_access(location, values, secrets)


def _longest(location: Location, credentials: Credentials | None) -> Any | None:
    named = (credentials or {}).get(location.scheme, {})
    names = [name for name in named if location.address.startswith(name)]
    return named[max(names, key=len)] if names else None


def _s3_options(location: Location, values: Mapping[str, str], *, is_own: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if is_own:  # else the AWS library reads the environment itself, and its own files
        names = {"key_id": "key", "secret_key": "secret", "session_token": "token"}
        options = {ours: values[name] for name, ours in names.items() if values[name]}
        if values["profile"] and "key" not in options:
            options["profile"] = values["profile"]
    if values["region"]:
        options["client_kwargs"] = {"region_name": values["region"]}
    if location.endpoint:
        options["endpoint_url"] = location.endpoint
        # Private instances seldom have a host name for each bucket.
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return options


def _azure_access(
    location: Location, values: Mapping[str, str], secrets: tuple[str, ...]
) -> Access:
    host, kind = location.account, values["auth_type"]
    options: dict[str, Any] = {"account_name": values["account_str"] or host.partition(".")[0]}
    if "." in host:
        options["account_host"] = host
    if kind == _MANAGED:
        return Access(options=options, identity=values["client_id"])
    if kind not in ("", _DEFAULT):
        raise InvalidArgumentError(
            f"expected {_MANAGED} or {_DEFAULT} as the kind of authentication of "
            f"{location.address}, got '{kind}'"
        )
    if values["account_key"] and not kind:
        return Access(options={**options, "account_key": values["account_key"]}, secrets=secrets)
    return Access(options={**options, "anon": False})  # the default chain of Azure's library
