# SPDX-License-Identifier: Apache-2.0
"""The manual of `tritonserver` lists the options that the command has."""

from __future__ import annotations

from tests.server.command import manual


def test_manual_ends_with_all_options():
    expected = manual.options()

    assert manual.PAGE.read_text().endswith(expected), f"the page should end with:\n{expected}"
