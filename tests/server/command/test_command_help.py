# SPDX-License-Identifier: Apache-2.0
"""The page that `tritonserver --help` shows."""

from __future__ import annotations

import re

import pytest

from pytriton.base.settings import BY_NAME, SETTINGS
from pytriton.serving.server.command.arguments import help_page

ESCAPES = re.compile("\x1b\\[[0-9]+m")


def test_page_shows_every_option_under_its_group():
    lines = help_page().splitlines()
    titles = [line for line in lines if line.startswith("  --") or re.match(r"\w.*:$", line)]

    assert [line.split()[0] for line in titles if line.startswith("  ")] == [
        f"--{name}" for name in BY_NAME
    ]
    assert [line[:-1] for line in titles if not line.startswith("  ")] == ["Examples", *SETTINGS]


def test_option_shows_its_value_default_and_meaning():
    assert (
        "  --http-port <integer>  (default 8000)\n      Port to listen on; 0 takes a free one.\n"
    ) in help_page()


@pytest.mark.parametrize(
    "name, remark",
    [
        ("trace-rate", "Use --trace-config=rate=... instead."),
        ("grpc-infer-thread-count", "Taken for compatibility, without effect here."),
    ],
)
def test_option_says_what_is_special(name, remark):
    _, _, rest = help_page().partition(f"  --{name} ")

    assert remark in rest.partition("\n  --")[0]


@pytest.mark.parametrize("width", [60, 80])
def test_sentences_keep_to_the_width(width):
    sentences = [line for line in help_page(width).splitlines() if line.startswith(" " * 6)]

    assert max(map(len, sentences)) <= width


def test_colours_change_nothing_but_colours():
    coloured = help_page(is_coloured=True)

    assert "\x1b[" not in help_page()
    assert coloured != help_page()
    assert ESCAPES.sub("", coloured) == help_page()
