# SPDX-License-Identifier: Apache-2.0
"""A connection whose client a test plays, and the pieces in which its bytes arrive."""

from __future__ import annotations

import pytest

from tests.fake_network import DELIVERIES
from tests.server.http_fakes import Client


@pytest.fixture(params=DELIVERIES, ids=str)
def sizes(request):
    return DELIVERIES[request.param]()


@pytest.fixture
def client():
    return Client()
