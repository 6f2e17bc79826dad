# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials in our wheel."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import zipfile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bill(tmp_path_factory):
    """The text of the file in a wheel that was just built."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    options = ["--no-build-isolation", f"--wheel-dir={folder}", str(REPOSITORY)]
    subprocess.run([*command, *options], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        return archive.read(name).decode()


def test_bill_is_valid(bill):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None


def test_bill_names_what_servers_install(bill):
    components = {each["name"]: each["scope"] for each in json.loads(bill)["components"]}

    assert components["httptools"] == components["grpcio"] == "required"
    optional = ("model-signing", "torch", "tritonclient")
    assert {components[name] for name in optional} == {"optional"}
    assert "pytest" not in components
    assert "pytriton" not in components
