# SPDX-License-Identifier: Apache-2.0
"""What the server's log says of an exception of a model."""

from __future__ import annotations

import pytest

from pytriton.runtime.backend.failure_text import describe_fully, raised_at


def raised(call):
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def syntax_error(path):
    error = raised(lambda: compile("class Model\n", str(path), "exec"))
    return error.with_traceback(None)  # as when only frames of ours and of importlib are there


def test_syntax_error_is_logged_as_a_traceback_with_its_place(tmp_path):
    error = syntax_error(tmp_path / "model.py")
    message, first, place, *_ = describe_fully(error).split("\n")

    assert message.startswith("SyntaxError: ")
    assert first == "Traceback (most recent call last):"
    assert place == f'  File "{tmp_path}/model.py", line 1'
    assert raised_at(error) == (f"{tmp_path}/model.py", 1)


def test_error_without_a_frame_is_said_once():
    error = AttributeError("no TritonPythonModel")

    assert describe_fully(error) == "AttributeError: no TritonPythonModel"
    assert raised_at(error) == ("", 0)


def test_cause_of_an_error_without_a_frame_is_kept():
    error = RuntimeError("why")
    error.__cause__ = ValueError("because")

    assert "\nTraceback (most recent call last):\nValueError: because" in describe_fully(error)


def test_error_with_frames_has_the_innermost_place():
    error = raised(lambda: int("x"))

    assert raised_at(error)[0] == __file__
    assert "\nTraceback (most recent call last):\n" in describe_fully(error)
