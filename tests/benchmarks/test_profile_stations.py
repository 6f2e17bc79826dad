# SPDX-License-Identifier: Apache-2.0
"""The functions at which a profile looks are those of the source."""

from __future__ import annotations

import importlib
from operator import attrgetter

import pytest

from benchmarks.gpu_profile import STATIONS


@pytest.mark.parametrize("station", STATIONS, ids=lambda each: each.function)
def test_station_of_a_profile_exists(station):
    module = importlib.import_module(station.module)

    assert callable(attrgetter(station.function)(module))
