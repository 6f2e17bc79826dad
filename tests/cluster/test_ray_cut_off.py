# SPDX-License-Identifier: Apache-2.0
"""A node that is cut off from the network for 20 s, on a real Ray and under load.

Its namespaces need a kernel that lets this user make them; elsewhere it is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from tests.cluster.cut_off_node import NAMESPACES
from tests.e2e.waiting import remove_folder

ROOT = pathlib.Path(__file__).parents[2]
CUT_S = 20
LINK = "ip link add near type veth peer name far && unshare --net true && which nsenter"

logger = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.gpu,  # nodes that claim to have GPUs need an environment that hides none
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]


@pytest.fixture
def folder():
    """A folder whose path is short, as sockets are in it."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    yield made
    remove_folder(made)


def why_no_namespaces():
    """Why no link can be made and cut here; empty if it can."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "there is no unshare or ip command here"
    command = [*NAMESPACES, "sh", "-c", LINK]
    tried = subprocess.run(command, check=False, capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


def test_node_that_is_cut_off_is_replaced_and_may_come_back(folder):
    if reason := why_no_namespaces():
        pytest.skip(reason)
    program = [sys.executable, "-m", "tests.cluster.cut_off_node", str(folder), str(CUT_S)]
    command = [*NAMESPACES, *program]

    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    story = json.loads(ended.stdout.splitlines()[-1])
    logger.info("%s", story)  # --log-cli-level=INFO shows it
    moving, pinned = story["moving"], story["pinned"]
    assert (moving["is_complete"], moving["cut"]) == (True, 0), story
    assert (pinned["is_complete"], pinned["cut"]) == (True, 0), story
    # The one was replaced where there was room before the node came back. The other waited for the
    # node, and its requests were refused meanwhile.
    assert story["nodes"] == ["far", "far", "spare", "far"]
    assert any("pinned_0_0" in text for text in pinned["refused"])
    assert (story["exit_code"], story["left"]) == (0, [])
