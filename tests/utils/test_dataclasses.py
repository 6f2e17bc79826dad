# SPDX-License-Identifier: Apache-2.0
import dataclasses
import inspect

import pytest

from pytriton.utils.dataclasses import kwonly_dataclass


@kwonly_dataclass
@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


def test_keywords_are_taken():
    assert Point(x=1) == Point(x=1, y=2)


def test_positional_arguments_are_refused():
    with pytest.raises(TypeError, match=r"^Point initialization can't be used with positional arg"):
        Point(1)


def test_class_stays_the_dataclass_that_it_was():
    assert dataclasses.is_dataclass(Point)
    assert isinstance(Point(x=1), Point)
    assert list(inspect.signature(Point).parameters) == ["x", "y"]
