# SPDX-License-Identifier: Apache-2.0
"""The decoupled models: the pages that tell how to serve them are run as they stand."""

from __future__ import annotations

import pathlib
import re
from collections import Counter

import pytest

from tests.examples.shell_page import run_shell_page
from tests.free_ports import free_ports
from tests.guides.conftest import guides_folder

REPOSITORY = pathlib.Path(__file__).parents[2]
GUIDE = guides_folder() / "decoupled_examples.md"

pytestmark = pytest.mark.e2e


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(REPOSITORY / "examples" / "decoupled" / "README.md", id="README"),
        pytest.param(
            GUIDE,
            id="guide",
            marks=[
                pytest.mark.guide,
                pytest.mark.skipif(
                    not GUIDE.exists(),
                    reason="the guides are not beside this checkout; PYTRITON_GUIDES names them",
                ),
            ],
        ),
    ],
)
def outputs(request, tmp_path_factory):
    """Lines that the page shows for the repeat and for the square client, and those that came."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    steps = run_shell_page(request.param, folder, free_ports(3))
    return [(lines_of(step.shown), lines_of(step.printed)) for step in steps]


def lines_of(text):
    # Two threads of a client print, and the second may begin before the first one's end of line.
    return re.sub(r"\.\.\.(?=\S)", "...\n", text).strip().split("\n")


def test_repeat_client_prints_what_the_page_shows_in_its_order(outputs):
    (shown, printed), _ = outputs
    lines = iter(printed)

    # What comes may have more lines: a server of today adds parameters to each response.
    assert [line for line in shown if line not in lines] == []
    assert printed.count("infer_response {") == 4
    assert printed[-2:] == ["PASS: repeat_int32", "stream stopped..."]


def test_square_client_prints_what_the_page_shows_in_any_order(outputs):
    _, (shown, printed) = outputs

    assert Counter(shown) - Counter(printed) == Counter()
    assert printed.count("infer_response {") == 7
    assert printed[-2:] == ["PASS: square_int32", "stream stopped..."]
