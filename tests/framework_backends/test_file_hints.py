# SPDX-License-Identifier: Apache-2.0
"""What is said about files that no library can read."""

from __future__ import annotations

import pytest

from pytriton.runtime.framework_backends.shared import explain_file


def test_pointer_of_git_lfs_is_recognised(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n")

    assert "git lfs pull" in explain_file(path)


@pytest.mark.parametrize("content", [b"", b"version", b"nonsense", bytes(100)])
def test_nothing_is_said_about_other_files(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)

    assert explain_file(path) == ""


@pytest.mark.parametrize("name", ["", "missing"])
def test_nothing_is_said_about_folders_and_missing_files(tmp_path, name):
    assert explain_file(tmp_path / name) == ""
