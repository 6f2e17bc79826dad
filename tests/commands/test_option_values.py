# SPDX-License-Identifier: Apache-2.0
"""Values of options that several commands read."""

from __future__ import annotations

import argparse

import pytest

from pytriton.__main__ import main
from pytriton.tools.commands.option_values import (
    number_between,
    number_from_0,
    positive_number,
    share,
    size_in_bytes,
    whole_number,
)


@pytest.mark.parametrize(
    "read, text, value",
    [
        (whole_number(1), "12", 12),
        (whole_number(0, 3), "+3", 3),
        (positive_number, "0.5", 0.5),
        (number_from_0, "0", 0.0),
        (number_between(0.1, 3600), "3600", 3600.0),
        (share, "0.1", 0.1),
        (share, "10%", 0.1),
        (share, "1", 1.0),
        (size_in_bytes, "100", 100),
        (size_in_bytes, "2k", 2048),
        (size_in_bytes, "1.5M", 3 << 19),
        (size_in_bytes, "1GiB", 1 << 30),
    ],
)
def test_value_is_read(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    "read, text, expected",
    [
        (whole_number(1), "0", "a whole number of at least 1"),
        (whole_number(1), "1.5", "a whole number of at least 1"),
        (whole_number(1), "9" * 5000, "a whole number of at least 1"),
        (whole_number(0, 3), "4", "a whole number from 0 to 3"),
        (positive_number, "0", "a number above 0"),
        (positive_number, "inf", "a number above 0"),
        (positive_number, "nan", "a number above 0"),
        (positive_number, "soon", "a number above 0"),
        (number_from_0, "-1", "a number of at least 0"),
        (number_between(0.1, 3600), "0", "a number from 0.1 to 3600"),
        (share, "2", "a share such as 0.1 or 10%"),
        (share, "0%", "a share such as 0.1 or 10%"),
        (share, "", "a share such as 0.1 or 10%"),
        (size_in_bytes, "", "a size such as 500M"),
        (size_in_bytes, "0.1", "a size such as 500M"),
        (size_in_bytes, "-1", "a size such as 500M"),
        (size_in_bytes, "5x", "a size such as 500M"),
    ],
)
def test_wrong_value_is_refused_with_what_was_expected(read, text, expected):
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        read(text)

    assert str(refusal.value) == f"expected {expected}, got {text}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["record", "day.rec", "--requests", "0"],
        ["record", "day.rec", "--share", "2"],
        ["record", "day.rec", "--seconds", "soon"],
        ["record", "day.rec", "--buffer", "5x"],
        ["replay", "day.rec", "--speed", "0"],
        ["replay", "day.rec", "--concurrency", "0"],
        ["replay", "day.rec", "--rtol", "-1"],
        ["models", "--timeout", "0"],
        ["top", "--interval", "often"],
    ],
)
def test_command_refuses_a_value_without_the_name_of_a_function(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)

    assert end.value.code == 2
    assert f"argument {arguments[-2]}: expected " in capsys.readouterr().err
