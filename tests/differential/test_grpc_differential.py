# SPDX-License-Identifier: Apache-2.0
"""Our gRPC answers beside the real Triton's: as recorded, and live where it is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests import recorded_json
from tests.differential import grpc_recording
from tests.differential.conftest import bind, infer_function
from tests.differential.grpc_case import GrpcCase, run
from tests.differential.grpc_cases import CASES
from tests.differential.grpc_models import STREAMS, stream_function
from tests.differential.grpc_recording import real_server
from tests.differential.model_table import MODELS
from tests.free_ports import free_ports
from tests.recorded_suite import mistakes

GOLDEN = recorded_json.load(grpc_recording.GOLDEN)
COMPARABLE = [case for case in CASES if not case.only_ours]


def named(cases: tuple[GrpcCase, ...] | list[GrpcCase]) -> object:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def our_grpc_port() -> Iterator[int]:
    http, grpc, metrics = free_ports(3)
    config = TritonConfig(
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        grpc_address="127.0.0.1",
        grpc_header_forward_pattern="x-.*",
    )
    security = TritonSecurityConfig(access_token="secret", restricted_endpoints=["trace"])
    with Triton(config=config, security_config=security) as triton:
        for model in (*MODELS, *STREAMS):
            function = stream_function(model) if model in STREAMS else infer_function(model)
            bind(triton, model, function)
        triton.run()
        yield grpc


@pytest.fixture(scope="module")
def real_grpc_port() -> Iterator[int]:
    with real_server() as port:
        yield port


@pytest.mark.e2e
@named(CASES)
def test_our_server_answers_grpc_as_the_real_one(case: GrpcCase, our_grpc_port: int) -> None:
    expected = GOLDEN[case.name] if case.ours is None else case.ours

    assert run(case, our_grpc_port) == expected


@pytest.mark.part("peers")
@pytest.mark.e2e
@named(COMPARABLE)
def test_grpc_recording_is_what_the_real_server_answers(
    case: GrpcCase, real_grpc_port: int
) -> None:
    assert run(case, real_grpc_port) == GOLDEN[case.name]


def test_grpc_recording_has_all_cases_and_each_difference_is_one() -> None:
    ours = {case.name: case.ours for case in CASES if case.ours is not None}
    reasons = {case.name: case.because for case in COMPARABLE if case.because}
    only_ours = {case.name for case in CASES} - {case.name for case in COMPARABLE}
    names = [case.name for case in CASES]

    assert mistakes(GOLDEN, ours, reasons, names=names, only_ours=only_ours) == {}
