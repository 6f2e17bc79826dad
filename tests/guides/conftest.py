# SPDX-License-Identifier: Apache-2.0
"""Where the guides are, and servers on free ports to check their promises with."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.free_ports import free_ports

REPOSITORY = pathlib.Path(__file__).parents[2]


def guides_folder() -> pathlib.Path:
    """The guides are other people's text, so they lie beside the checkout and not in it."""
    default = REPOSITORY.parent / "shared" / "guides"
    return pathlib.Path(os.environ.get("PYTRITON_GUIDES", default))


@pytest.fixture
def ports() -> dict[str, int]:
    return dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
