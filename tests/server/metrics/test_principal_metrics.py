# SPDX-License-Identifier: Apache-2.0
"""The metrics of principals: lines for each that is listed, and one for all others."""

from __future__ import annotations

import pytest

from pytriton.base.errors import ResourceExhaustedError
from pytriton.base.quotas import PrincipalQuotas, Quota
from pytriton.serving.engine.quotas import ModelQuotas, Quotas
from tests.fakes import RecordingSink, inference
from tests.server.metrics.test_metrics import model, page


def test_model_without_quotas_has_no_lines_of_principals():
    text = page(model("m"))

    assert "nv_principal" not in text


def test_principals_have_lines_of_their_own():
    served = model("m")
    quotas = ModelQuotas("m", 1, served.statistics)
    limited = PrincipalQuotas(quotas=(Quota(concurrent=2),))
    quotas.apply(Quotas({'al"ice': limited, "bob": PrincipalQuotas()}))
    made = [inference(RecordingSink(), principal='al"ice') for _ in range(3)]
    quotas.admit(made[0], 0)
    quotas.admit(made[1], 0)
    with pytest.raises(ResourceExhaustedError):
        quotas.admit(made[2], 0)
    made[0].end().on_response(None, final=True)
    for number in range(5):
        quotas.admit(inference(RecordingSink(), principal=f"stranger {number}"), 0)
    lines = [line for line in page(served).splitlines() if line.startswith("nv_principal")]

    alice = 'model="m",principal="al\\"ice",'
    assert f'nv_principal_request_count{{{alice}version="1"}} 2' in lines
    assert f'nv_principal_refused_count{{{alice}limit="concurrent",version="1"}} 1' in lines
    assert f'nv_principal_running_request_count{{{alice}version="1"}} 1' in lines
    assert 'nv_principal_request_count{model="m",principal="",version="1"} 5' in lines
    assert not [line for line in lines if "stranger" in line or "bob" in line]


def test_principals_that_have_used_nothing_have_no_lines():
    served = model("m")
    quotas = ModelQuotas("m", 1, served.statistics)
    quotas.apply(Quotas({f"p{number}": PrincipalQuotas() for number in range(2000)}))
    made = inference(RecordingSink(), principal="p7")
    quotas.admit(made, 0)
    made.end().on_response(None, final=True)
    lines = [line for line in page(served).splitlines() if line.startswith("nv_principal")]

    assert len(lines) <= 6
    assert all('principal="p7"' in line for line in lines)
    assert 'nv_principal_running_request_count{model="m",principal="p7",version="1"} 0' in lines


def test_principal_whose_ensemble_used_a_model_has_lines_there():
    served = model("step")
    quotas = ModelQuotas("step", 1, served.statistics)
    quotas.apply(Quotas({"alice": PrincipalQuotas()}))
    step = inference(RecordingSink(), principal="alice", owner=object(), queued_ns=1_000)
    quotas.on_dispatch([step], 8_000)

    labels = 'model="step",principal="alice",version="1"'
    assert f"nv_principal_queue_duration_us{{{labels}}} 7" in page(served)
