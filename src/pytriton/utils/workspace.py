# SPDX-License-Identifier: Apache-2.0
"""The folder that a server and the process that binds models to it share."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import warnings
import weakref

from pytriton import constants


class CleanupWarning(UserWarning):
    """A workspace could not be removed completely."""


class Workspace:
    """A folder that can contain a model store; `clean` removes it.

    Args:
        workspace_path: folder to create; it must not exist yet. By default a folder with a random
            name is made under `PYTRITON_HOME` and removed with the object.

    Raises:
        FileExistsError: if `workspace_path` exists.
    """

    def __init__(self, workspace_path: str | pathlib.Path | None = None) -> None:
        if workspace_path is None:
            home = constants.PYTRITON_HOME
            home.mkdir(parents=True, exist_ok=True)
            self._path = pathlib.Path(tempfile.mkdtemp(dir=home, prefix="workspace_")).resolve()
            weakref.finalize(self, _remove, self._path)
        else:
            self._path = pathlib.Path(workspace_path).resolve()
            self._path.mkdir(parents=True)
        self.model_store_path.mkdir()

    @property
    def path(self) -> pathlib.Path:
        """The absolute path of the folder."""
        return self._path

    @property
    def model_store_path(self) -> pathlib.Path:
        """The folder of the workspace's models."""
        return self._path / "model-store"

    def exists(self) -> bool:
        """Returns whether the folder exists."""
        return self._path.exists()

    def is_empty(self) -> bool:
        """Returns whether the folder is missing or contains hidden entries only."""
        if not self.exists():
            return True
        return all(entry.name.startswith(".") for entry in self._path.iterdir())

    def clean(self) -> None:
        """Remove the folder and its contents; warns with `CleanupWarning` if that fails."""
        _remove(self._path)

    def __repr__(self) -> str:
        return f"Workspace({str(self._path)!r})"


def _remove(path: pathlib.Path) -> None:
    if not path.exists():
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        warnings.warn(f"Could not remove workspace {path}: {error}", CleanupWarning, stacklevel=3)
