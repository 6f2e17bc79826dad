# SPDX-License-Identifier: Apache-2.0
"""The limit of descriptors is raised, and a part of it is kept from clients."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton.serving.server.process import resources

RAISE = """
import json, resource, sys
from pytriton.serving.server.process.resources import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
raise_limit()
print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""


def raised(soft, hard):
    command = [sys.executable, "-c", RAISE, str(soft), str(hard)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_soft_limit_is_raised_to_the_hard_one():
    assert raised(100, 300) == [300, 300]


def test_limit_that_is_raised_already_stays():
    assert raised(300, 300) == [300, 300]


@pytest.mark.parametrize(
    "soft, for_clients, for_metrics",
    [(128, 96, 112), (1024, 768, 896), (1 << 20, (1 << 20) - 1024, (1 << 20) - 512)],
)
def test_a_quarter_is_reserved_but_not_more_than_enough(
    monkeypatch, soft, for_clients, for_metrics
):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))

    assert resources.client_limit() == for_clients
    assert resources.client_limit(is_essential=True) == for_metrics


def test_no_limit_reserves_nothing(monkeypatch):
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)

    assert resources.client_limit() == sys.maxsize


def test_lowest_free_number_is_that_of_the_next_descriptor():
    with Path(os.devnull).open() as file:
        free = resources.lowest_free(file.fileno())
        with Path(os.devnull).open() as another:
            assert another.fileno() == free
            assert resources.lowest_free(file.fileno()) > free
