# SPDX-License-Identifier: Apache-2.0
"""Lists and downloads the files of one repository in an object store, through `fsspec`.

This is the only module that knows `fsspec`, and it imports it when the first repository is opened.
All calls wait for the network: they belong in threads.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytriton.base.errors import InvalidArgumentError, ServerError
from pytriton.serving.repository.reading.layout import FetchError
from pytriton.serving.repository.remote.listing import (
    RemoteFile,
    StoreListing,
    model_names,
    read_listing,
)
from pytriton.serving.repository.remote.location import AZURE, GCS, S3, Access, Location

# By scheme: the package that implements it, its name in fsspec, and our extra that installs it.
_PACKAGES = {
    S3: ("s3fs", "s3", "s3"),
    GCS: ("gcsfs", "gs", "gcs"),
    AZURE: ("adlfs", "abfs", "azure"),
}
# At low levels these write whole requests, with the headers that authorise them. At WARNING, gcsfs
# says with each request that a public bucket needs no credentials.
_CHATTY = ("aiobotocore", "aiohttp", "asyncio", "azure", "boto3", "botocore", "fsspec", "gcsfs",
           "google", "s3fs", "urllib3")  # fmt: skip
_TAGS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
_ATTEMPTS = 3  # of one request; loading a model again is a setting of its own

OpenFileSystem = Callable[[Location, Access], Any]


def open_file_system(location: Location, access: Access) -> Any:
    """Make the file system of a repository; nothing is connected yet."""
    package, protocol, extra = _PACKAGES[location.scheme]
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        importlib.import_module(package)
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise InvalidArgumentError(
            f"model repository '{location.address}' needs the package {package}, which cannot be "
            f"imported ({error}); install it with: pip install 'pytriton[{extra}]'"
        ) from error
    options = dict(access.options)
    if location.scheme == S3:
        options["config_kwargs"] = _s3_settings(options.get("config_kwargs", {}))
    if access.identity is not None:
        identity = importlib.import_module("azure.identity.aio")
        options["credential"] = identity.ManagedIdentityCredential(
            client_id=access.identity or None
        )
    # A listing must be what the store has now, and credentials are those of this repository only.
    system = fsspec.filesystem(
        protocol, **options, use_listings_cache=False, skip_instance_cache=True
    )
    if location.scheme == S3:
        system.retries = 1  # the AWS library has made its attempts already
    return system


def _s3_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "read_timeout": _READ_TIMEOUT_S,
        **given,
    }
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        settings["retries"] = {"total_max_attempts": _ATTEMPTS, "mode": "standard"}
    return settings


class RemoteStore:
    """The files of a repository."""

    def __init__(
        self, location: Location, access: Access, open_system: OpenFileSystem = open_file_system
    ) -> None:
        self._location = location
        self._secrets = access.secrets
        try:
            self._system = open_system(location, access)
        except ServerError:
            raise
        except Exception as error:
            raise InvalidArgumentError(self._failure(location.root, error).args[0]) from error

    def list_names(self) -> list[str]:
        """Returns the names of all models, without their files."""
        root = self._location.root
        try:
            entries = self._system.ls(root, detail=True)
        except FileNotFoundError:  # nothing is below the root, or there is no such bucket
            return sorted(self.list_files().models)
        except Exception as error:
            raise self._failure(root, error) from error
        return model_names(
            root, (entry["name"] for entry in entries if entry["type"] == "directory")
        )

    def check_path(self) -> None:
        """Refuse a path with nothing below: in an object store, there is no such folder then."""
        root = self._location.root
        if "/" not in root:  # a bucket may be empty
            return
        try:
            is_there = self._system.exists(root)
        except Exception as error:
            raise self._failure(root, error) from error
        if not is_there:
            raise FetchError(
                f"repository path '{self._location.address}' is not a valid directory: "
                "nothing is stored below it"
            )

    def list_files(self, model: str = "") -> StoreListing:
        """Returns the files of all models, or of one."""
        root = self._location.root
        below = f"{root}/{model}" if model else root
        try:
            found: Mapping[str, Mapping[str, Any]] = self._system.find(below, detail=True)
        except Exception as error:
            raise self._failure(below, error) from error
        entries = (_entry(path, info) for path, info in found.items())
        return read_listing(root, entries)

    def download(
        self, model: str, file: RemoteFile, target: Path, check: Callable[[], None]
    ) -> None:
        """Download a file.

        `check` is called now and then; an exception of it ends the download. Raises FetchError also
        if the file is not the listed one.
        """
        path = f"{self._location.root}/{model}/{file.path}"
        check()
        try:
            self._system.get_file(path, str(target), callback=_progress(check))
            size = target.stat().st_size
        except Exception as error:
            raise self._failure(path, error) from error
        if size != file.size:
            raise FetchError(
                f"'{self._shown(path)}' was changed while it was downloaded: expected "
                f"{file.size} bytes, got {size}"
            )

    def _shown(self, path: str) -> str:
        return self._location.address + path.removeprefix(self._location.root)

    def _failure(self, path: str, error: Exception) -> Exception:
        if isinstance(error, CancelledFetchError):
            return error
        text = f"failed to access '{self._shown(path)}': {_reason(error)}"
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return FetchError(text)


class CancelledFetchError(FetchError):
    """A download was cancelled, because it is not needed any more."""


def _progress(check: Callable[[], None]) -> Any:
    """Returns a callback of `fsspec`, which calls `check` after each block."""

    class DownloadProgress(importlib.import_module("fsspec.callbacks").Callback):  # type: ignore[misc]  # it has no types
        def relative_update(self, inc: int = 1) -> None:
            check()

    return DownloadProgress()


def _entry(path: str, info: Mapping[str, Any]) -> RemoteFile:
    tags = (f"{name}={info[name]}" for name in _TAGS if info.get(name) is not None)
    return RemoteFile(path, int(info.get("size") or 0), " ".join(tags))


def _reason(error: Exception) -> str:
    """Returns one line that says what is wrong in the words of the store, and what kind it is."""
    text = " ".join(str(error).split()) or type(error).__name__
    kinds = (
        (PermissionError, "access denied"),
        (FileNotFoundError, "not found"),
        (TimeoutError, "no answer in time"),
    )
    for kind, words in kinds:
        if isinstance(error, kind):
            return f"{words}: {text}"
    return f"{type(error).__name__}: {text}"
