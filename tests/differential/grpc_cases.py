# SPDX-License-Identifier: Apache-2.0
"""Every compared gRPC call."""

from __future__ import annotations

from tests.differential.grpc_case import GrpcCase, distinct
from tests.differential.grpc_cases_server import SERVER_CASES
from tests.differential.grpc_cases_stream import STREAM_CASES
from tests.differential.grpc_cases_unary import UNARY_CASES

CASES: tuple[GrpcCase, ...] = tuple(distinct((*SERVER_CASES, *UNARY_CASES, *STREAM_CASES)))
