# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

CHECK = """
import os, sys
import pytriton.serving.server.repository_core
from pytriton.serving.repository.remote.finder import open_finder
open_finder([sys.argv[1]], os.environ, with_files=True).find()
print(sorted({"fsspec", "s3fs", "gcsfs", "adlfs", "botocore", "aiohttp"} & set(sys.modules)))
"""


def test_server_of_local_folders_imports_no_package_of_a_store(tmp_path):
    command = [sys.executable, "-c", CHECK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout == "[]\n", done.stderr
