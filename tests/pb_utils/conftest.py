# SPDX-License-Identifier: Apache-2.0
"""What tests of the objects that models use have in common."""

from __future__ import annotations

import pytest

from pytriton.runtime.pb_utils.runtime import set_runtime
from tests.pb_utils.fakes import FakeRuntime


@pytest.fixture
def runtime():
    fake = FakeRuntime()
    set_runtime(fake)
    yield fake
    set_runtime(None)
