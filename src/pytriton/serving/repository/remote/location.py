# SPDX-License-Identifier: Apache-2.0
"""Reads the addresses of model repositories in object stores, in all forms that Triton takes."""

from __future__ import annotations

import re

import msgspec

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

    Raises:
        InvalidArgumentError: It has none of the forms. The text does not repeat passwords.
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
