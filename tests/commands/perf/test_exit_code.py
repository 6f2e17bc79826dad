# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest

from pytriton.tools.commands.perf.command import exit_code
from pytriton.tools.perf.measuring.results import LevelStatus


@pytest.mark.parametrize(
    "statuses, allow_unstable, code",
    [
        ([LevelStatus.STABLE], False, 0),
        ([LevelStatus.UNSTABLE], False, 2),
        ([LevelStatus.UNSTABLE], True, 0),
        ([LevelStatus.STABLE, LevelStatus.UNSTABLE], False, 0),
        ([LevelStatus.STABLE, LevelStatus.FAILED], True, 99),
    ],
)
def test_first_level_decides_unless_one_had_no_answer(statuses, allow_unstable, code):
    measured = SimpleNamespace(results=[[SimpleNamespace(status=status) for status in statuses]])

    assert exit_code(measured, allow_unstable=allow_unstable) == code
