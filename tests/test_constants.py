# SPDX-License-Identifier: Apache-2.0
import pathlib

import pytest

from pytriton import constants


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, "/home/user/.cache/pytriton"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/pytriton"),
        ({"XDG_CACHE_HOME": "/cache", "PYTRITON_HOME": "/srv"}, "/srv"),
        ({"PYTRITON_HOME": "~/models"}, "/home/user/models"),
        ({"PYTRITON_HOME": "$HOME/models"}, "/home/user/models"),
    ],
)
def test_pytriton_home_follows_the_environment(monkeypatch, variables, expected):
    for name in ("XDG_CACHE_HOME", "PYTRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/user"} | variables).items():
        monkeypatch.setenv(name, value)

    assert constants._pytriton_home() == pathlib.Path(expected)
