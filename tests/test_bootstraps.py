# SPDX-License-Identifier: Apache-2.0
"""The first lines of the processes that this package starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytriton.binding import server_process
from pytriton.runtime.executor import python_process

BOOTSTRAPS = {
    f"server: {entry}": (server_process._BOOTSTRAP.format(load=load, entry=entry), [])
    for entry, load in server_process.LOAD_OF.items()
} | {
    "zygote": (python_process._ZYGOTE_BOOTSTRAP, ["pytriton.serving.server.main"]),
}
STAND_IN = """
import gc

at_import = gc.isenabled()


def main(arguments):
    print(at_import, gc.isenabled(), gc.get_freeze_count() > 0, arguments)
"""


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_garbage_is_looked_for_only_among_what_comes_after_the_imports(name, tmp_path):
    files = {
        "__init__.py": "",  # or the installed package would be found in place of this one
        "serving/server/main.py": STAND_IN,
        "serving/server/repository_main.py": STAND_IN,
        "base/openblas.py": "load_without_threads = load_for_copying = lambda: None",
    }
    for path, text in files.items():
        file = tmp_path / "pytriton" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    code, module = BOOTSTRAPS[name]

    command = [sys.executable, "-c", code, str(tmp_path), *module, "--of-the", "process"]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout

    assert output == "False True True ['--of-the', 'process']\n"
