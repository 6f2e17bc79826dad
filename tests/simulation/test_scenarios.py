# SPDX-License-Identifier: Apache-2.0
"""Some seeds of every profile have no findings; `scripts/simulate` runs many more."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import LONG
from tests.simulation.scenario import PROFILES, Run, make_scenario
from tests.simulation.story import tell


@pytest.mark.parametrize("seed", range(100, 102))
@pytest.mark.parametrize("profile", PROFILES)
def test_seed_has_no_findings(profile: str, seed: int):
    result = Run(make_scenario(seed, profile)).run()

    assert not result.findings, tell(result)


def test_hour_of_quiet_clients_has_no_findings():
    result = Run(make_scenario(100, "quiet", length=LONG["quiet"])).run()

    assert not result.findings, tell(result)
    assert result.virtual_s > 1800
