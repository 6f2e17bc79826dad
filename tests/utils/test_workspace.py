# SPDX-License-Identifier: Apache-2.0
import gc
import shutil

import pytest

from pytriton import constants
from pytriton.utils.workspace import CleanupWarning, Workspace


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "PYTRITON_HOME", tmp_path / "home")
    return tmp_path / "home"


def test_workspace_holds_a_model_store_only(tmp_path):
    workspace = Workspace(tmp_path / "work")

    assert workspace.path == (tmp_path / "work").resolve()
    assert list(workspace.path.iterdir()) == [workspace.model_store_path]
    assert workspace.model_store_path.name == "model-store"


def test_workspace_must_not_exist(tmp_path):
    with pytest.raises(FileExistsError):
        Workspace(str(tmp_path))


def test_workspace_without_path_lies_under_home(home):
    workspace = Workspace()

    assert workspace.path.parent == home.resolve()
    assert workspace.path.name.startswith("workspace_")


def test_workspace_without_path_goes_with_its_object():
    workspace = Workspace()
    path = workspace.path

    del workspace
    gc.collect()

    assert not path.exists()


def test_workspace_with_path_stays_after_its_object(tmp_path):
    Workspace(tmp_path / "work")
    gc.collect()

    assert (tmp_path / "work").exists()


def test_workspace_is_empty_when_missing_or_hidden(tmp_path):
    workspace = Workspace(tmp_path / "work")
    assert not workspace.is_empty()

    workspace.model_store_path.rmdir()
    (workspace.path / ".hidden").touch()
    assert workspace.is_empty()

    workspace.clean()
    assert workspace.is_empty()
    assert not workspace.exists()


def test_clean_may_be_repeated(tmp_path):
    workspace = Workspace(tmp_path / "work")

    workspace.clean()
    workspace.clean()

    assert not workspace.exists()


def test_clean_warns_when_it_cannot(tmp_path, monkeypatch):
    workspace = Workspace(tmp_path / "work")

    def refuse(path):
        raise PermissionError(str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.warns(CleanupWarning, match="Could not remove workspace"):
        workspace.clean()
