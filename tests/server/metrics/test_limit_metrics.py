# SPDX-License-Identifier: Apache-2.0
"""The families that say how near the server is to its limits."""

from __future__ import annotations

from pytriton.serving.server.metrics.machine import LimitReading, limit_families
from pytriton.serving.server.metrics.page import server_family_names


def test_limits_are_shown_by_name_with_what_they_have():
    readings = [
        LimitReading("request_memory", 5, 10, 2),
        LimitReading("connections", 3),
        LimitReading("http_body_bytes", refusals=7),
    ]

    used, most, refusals = limit_families(readings)
    assert used.text().splitlines()[2:] == [
        'nv_limit_used{limit="request_memory"} 5',
        'nv_limit_used{limit="connections"} 3',
    ]
    assert most.text().splitlines()[2:] == ['nv_limit_max{limit="request_memory"} 10']
    assert refusals.text().splitlines()[1:] == [
        "# TYPE nv_limit_refusals_total counter",
        'nv_limit_refusals_total{limit="request_memory"} 2',
        'nv_limit_refusals_total{limit="http_body_bytes"} 7',
    ]
    assert refusals.open_text().startswith("# TYPE nv_limit_refusals counter")


def test_models_cannot_use_the_names_of_limits():
    assert {"nv_limit_used", "nv_limit_max", "nv_limit_refusals_total"} <= server_family_names()
