# SPDX-License-Identifier: Apache-2.0
"""Our C headers: they compile as C and C++, and declare what the real server exports."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import shutil
import subprocess

import pytest

from pytriton import __main__
from pytriton.runtime.native_backend.api_table import FUNCTIONS
from tests import peers
from tests.native_backend.header_text import HEADERS, INCLUDE, declared_functions

CHECKS = ("-Wall", "-Wextra", "-pedantic", "-fsyntax-only")
EVERYTHING = """
#include "triton/core/tritonbackend.h"
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests,
    const uint32_t count)
{
  (void)instance; (void)requests; (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "nothing");
}
"""


@pytest.mark.parametrize("arguments", [["-x", "c", "-std=c99"], ["-x", "c++", "-std=c++11"]])
def test_headers_compile_without_warnings(arguments):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if "c++" in arguments and shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")

    outcome = subprocess.run(
        [compiler, *arguments, *CHECKS, f"-I{INCLUDE}", "-"],
        input=EVERYTHING,
        text=True,
        capture_output=True,
        check=False,
    )

    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_command_prints_the_folder_of_the_headers(capsys):
    assert __main__.main(["include"]) == 0

    folder = pathlib.Path(capsys.readouterr().out.strip())
    assert all((folder / name).is_file() for name in HEADERS)


def test_headers_have_the_entry_points_that_a_backend_may_have():
    assert len(declared_functions("ISPEC")) == 13


def test_table_of_functions_has_the_known_signatures():
    table = json.dumps(FUNCTIONS, sort_keys=True).encode()

    known = "22e1d8cdac504e275e84e0e193ccd2e093e327bb606114229c1fcabd85b3088d"
    assert hashlib.sha256(table).hexdigest() == known, "signatures of the C API never change"


def test_headers_declare_all_functions_of_both_parts_of_the_table():
    parts = ("TRITONSERVER_", "TRITONBACKEND_")

    assert declared_functions("DECLSPEC") == {name for name in FUNCTIONS if name.startswith(parts)}


@pytest.fixture(scope="module")
def real_library():
    """The library of the real server, which is only asked, not started."""
    libraries = "lib/python*/site-packages/nvidia_pytriton.libs"
    return next(peers.python().parent.parent.glob(f"{libraries}/libtritonserver*.so"))


@pytest.mark.part("peers")
def test_headers_declare_what_the_real_server_exports(real_library):
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", real_library], capture_output=True, text=True, check=True
    ).stdout
    exported = set(re.findall(r"\b(TRITON(?:SERVER|BACKEND)_\w+)$", listing, re.MULTILINE))

    assert declared_functions("DECLSPEC") == exported
