# SPDX-License-Identifier: Apache-2.0
"""docs/tls.md: its certificates work with its commands, and its table has all settings."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from pytriton.base.settings import BY_NAME, SETTINGS
from pytriton.testing.server import StartServer

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "tls.md"
TEXT = PAGE.read_text()
SERVE, MAKE, ASK, ASK_WITH_CERTIFICATE = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)


def run(folder, block):
    return subprocess.run(
        ["bash", "-ec", block], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.e2e
@pytest.mark.parametrize("is_mutual", [False, True], ids=["server", "mutual"])
def test_commands_of_the_page_reach_a_server(tmp_path, is_mutual):
    for program in ("openssl", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    run(tmp_path, MAKE)
    files = {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key"}
    if is_mutual:
        files["tls_client_ca"] = tmp_path / "ca.pem"
    start = StartServer(lambda: tmp_path)
    try:
        server = start(**files)
        place = server.http_url.removeprefix("https://127.0.0.1")
        plain, shown = (
            run(tmp_path, block.replace(":8000", place).replace("curl", "curl -fsS"))
            for block in (ASK, ASK_WITH_CERTIFICATE)
        )
    finally:
        start.stop()

    assert shown.returncode == 0, shown.stderr
    assert (plain.returncode == 0) is not is_mutual


def test_page_has_all_settings():
    names = {setting.name for setting in SETTINGS["TLS"]}

    assert names <= set(re.findall(r"`--([a-z-]+)` \|", TEXT))
    assert {setting.key for setting in SETTINGS["TLS"]} <= set(re.findall(r"`(\w+)`", TEXT))


def test_command_of_the_page_has_options_of_the_server():
    assert {word.partition("=")[0][2:] for word in SERVE.split()[1:]} <= set(BY_NAME)


def test_yaml_of_the_page_can_be_read():
    for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL):
        assert yaml.safe_load(block)
