# SPDX-License-Identifier: Apache-2.0
"""Which frames of a traceback are shown to users, and where they look first."""

from __future__ import annotations

import functools
import json
import traceback

import pytest

from pytriton.base.package import PACKAGE_FOLDER
from pytriton.base.user_frames import (
    definition_of,
    own_frame,
    short_traceback,
    user_frames,
    user_traceback,
    with_user_function,
)

OURS = str(PACKAGE_FOLDER / "runtime" / "functions" / "host.py")


def code(file, text):
    """Returns the names that a file with this text defines."""
    names = {}
    exec(compile(text, file, "exec"), names)  # the text is the test's own
    return names


CALL = code(OURS, "def run(call):\n    return call()\n")["run"]


def raised(call):
    with pytest.raises(BaseException) as caught:
        call()
    # Without the frames of the test, which are a user's as well.
    error = caught.value
    return error.with_traceback(error.__traceback__.tb_next)


def scale(tmp_path):
    text = "def scale():\n    return check()\n\ndef check():\n    raise ValueError('too small')\n"
    return code(str(tmp_path / "scale.py"), text)["scale"]


def test_user_frames_are_innermost_first_and_have_none_of_ours(tmp_path):
    error = raised(lambda: CALL(lambda: CALL(scale(tmp_path))))
    frames = [frame for frame in user_frames(error.__traceback__) if frame.file != __file__]

    assert [(frame.line, frame.function) for frame in frames] == [(5, "check"), (2, "scale")]
    assert str(frames[0]) == "scale.py:5 in check"


def test_own_frame_is_not_in_an_installed_library(tmp_path):
    text = "import json\ndef parse():\n    return json.loads('{')\n"
    parse = code(str(tmp_path / "parse.py"), text)["parse"]
    error = raised(lambda: CALL(parse))
    innermost = user_frames(error.__traceback__)[0]

    assert innermost.file == json.decoder.__file__
    assert str(own_frame(error)) == "parse.py:3 in parse"


def test_own_frame_of_a_library_alone_is_its_innermost_frame():
    error = raised(lambda: json.loads("{"))
    trace = error.__traceback__
    while trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next

    assert own_frame(error.with_traceback(trace)).file == json.decoder.__file__


def test_own_frame_of_a_file_that_cannot_be_compiled_is_in_the_error(tmp_path):
    error = raised(lambda: compile("class Model\n", str(tmp_path / "model.py"), "exec"))

    assert str(own_frame(error)) == "model.py:1 in <module>"


def test_own_frame_is_missing_where_only_our_code_ran():
    error = raised(lambda: code(OURS, "1 / 0"))
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next

    assert own_frame(error.with_traceback(trace)) is None
    assert OURS in short_traceback(error.with_traceback(trace))


def test_short_traceback_has_no_frames_of_ours_nor_its_causes(tmp_path):
    def fail():
        try:
            CALL(scale(tmp_path))
        except ValueError as error:
            raise RuntimeError("no scale") from error

    text = short_traceback(raised(lambda: CALL(fail)))

    assert text.startswith("Traceback (most recent call last):\n")
    assert OURS not in text
    assert "ValueError: too small\n" in text
    assert text.endswith("RuntimeError: no scale")


def test_short_traceback_that_is_long_loses_its_middle(tmp_path):
    def fail(depth):
        if depth == 0:
            raise ValueError("bottom")
        return (fail, other)[depth % 2](depth - 1)

    def other(depth):
        return fail(depth)

    text = short_traceback(raised(lambda: fail(300)), max_characters=1000)

    assert len(text) < 1010
    assert text.startswith("Traceback")
    assert "\n  ...\n" in text
    assert text.endswith("ValueError: bottom")


def test_short_traceback_of_a_message_that_is_too_long_is_cut():
    error = raised(lambda: CALL(lambda: int("x" * 5000)))
    error.args = ("y" * 5000,)

    assert len(short_traceback(error, max_characters=1000)) < 1010


def test_short_traceback_of_an_error_without_a_frame_is_its_last_line():
    assert short_traceback(KeyError("a")) == "KeyError: 'a'"


def test_short_traceback_of_an_error_without_a_text_is_written():
    class SilentError(Exception):
        def __str__(self):
            raise RuntimeError

    assert "SilentError" in short_traceback(SilentError())


def test_user_traceback_can_be_written_by_others(tmp_path):
    error = raised(lambda: CALL(scale(tmp_path)))
    text = "".join(traceback.format_exception(type(error), error, user_traceback(error)))

    assert OURS not in text
    assert "scale.py" in text
    assert any(each.filename == OURS for each in traceback.extract_tb(error.__traceback__))


def test_definition_is_that_of_the_users_function(tmp_path):
    function = scale(tmp_path)

    @functools.wraps(function)
    def decorated():
        return function()

    class Callable:
        def __call__(self):
            return function()

    assert str(definition_of(function)) == "scale.py:1 in scale"
    assert definition_of(decorated) == definition_of(function)
    assert definition_of(functools.partial(decorated)) == definition_of(function)
    assert definition_of(Callable()).function == "__call__"
    assert definition_of(with_user_function(CALL, decorated)) == definition_of(function)
    assert definition_of(len) is None
