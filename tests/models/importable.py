# SPDX-License-Identifier: Apache-2.0
"""Functions, classes and factories that tests refer to by name."""

from __future__ import annotations

import functools

from pytriton.decorators import batch, model

made: list[str] = []  # what was made by importing nothing but this module


def plain(requests):
    return requests


@batch
def decorated(**inputs):
    return inputs


def factory():
    made.append("function")
    return plain


def makes_nothing():
    return None


class Doubler:
    def __init__(self) -> None:
        made.append("object")

    def __call__(self, x: float) -> float:
        return 2 * x

    def method(self, requests):
        return requests


class Demanding:
    def __init__(self, weights) -> None:
        self.weights = weights

    def __call__(self, x: float) -> float:
        return x


class NotCallable:
    pass


@model(name="half", version=3, strict=True, max_batch_size=16, instances=4)
def halve(x: float) -> float:
    return x / 2


def nested():
    def inner(requests):
        return requests

    return inner


renamed = functools.partial(plain)
an_object = Doubler
value = 7


def shadowed(requests):
    return requests


original_shadowed = shadowed


def shadowed(requests):
    return requests
