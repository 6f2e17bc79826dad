# SPDX-License-Identifier: Apache-2.0
"""Files of a model on a machine that is not the server's."""

from __future__ import annotations

import pathlib

import pytest

import pytriton
from pytriton.base.errors import InternalError
from pytriton.runtime.python_backend.loader import find_files
from pytriton.runtime.transport.frames import Initialize


def frame_of(path, repository="", **fields) -> Initialize:
    return Initialize(str(path), "1", {"model_repository": str(repository)}, [], **fields)


def test_missing_file_is_named_with_what_to_do(tmp_path):
    frame = frame_of(tmp_path / "1" / "model.py", tmp_path, sharing="share it")

    with pytest.raises(InternalError) as caught:
        find_files(frame)

    assert caught.value.message == f"'{tmp_path}/1/model.py' cannot be read there: share it"


def test_missing_folder_is_named(tmp_path):
    (tmp_path / "model.py").touch()
    frame = frame_of(
        tmp_path / "model.py", tmp_path, model_directory=str(tmp_path / "7"), sharing="share it"
    )

    with pytest.raises(InternalError, match="/7' cannot be read there"):
        find_files(frame)


def test_file_of_the_package_is_found_where_the_package_is():
    frame = frame_of("pytriton:runtime/framework_backends/fil/model.py", sharing="share it")
    find_files(frame)

    home = pathlib.Path(pytriton.__file__).parent
    assert frame.model_path == str(home / "runtime" / "framework_backends" / "fil" / "model.py")


def test_nothing_is_looked_for_on_the_machine_of_the_server(tmp_path):
    frame = frame_of(tmp_path / "missing.py")
    find_files(frame)  # would raise for a file that is missing

    assert frame.model_path == str(tmp_path / "missing.py")
