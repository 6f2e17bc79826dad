# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import logging
import pathlib

import pytest

import pytriton
from pytriton.utils.distribution import get_root_module_path, is_editable_install
from pytriton.utils.logging import silence_3rd_party_loggers


def test_root_is_the_folder_of_the_package():
    assert get_root_module_path() == pathlib.Path(pytriton.__file__).resolve().parent


@pytest.mark.parametrize(
    "origin, expected",
    [
        (None, False),
        ('{"url": "file:///x", "dir_info": {"editable": true}}', True),
        ('{"url": "file:///x", "dir_info": {}}', False),
    ],
)
def test_install_is_editable_where_its_record_says_so(monkeypatch, origin, expected):
    class Distribution:
        def read_text(self, name):
            return origin if name == "direct_url.json" else None

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())

    assert is_editable_install() is expected


def test_package_that_is_not_installed_runs_from_its_source(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)

    assert is_editable_install() is True


def test_third_party_loggers_show_warnings():
    silence_3rd_party_loggers()

    assert logging.getLogger("urllib3").getEffectiveLevel() == logging.WARNING
