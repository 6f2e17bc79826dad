# SPDX-License-Identifier: Apache-2.0
"""Makes the questions of a server's protocol."""

from __future__ import annotations

from pytriton.tools.perf.server.grpc_questions import GrpcQuestions
from pytriton.tools.perf.server.http_questions import HttpQuestions
from pytriton.tools.perf.server.questions import Questions, ServerAddress


def questions_of(address: ServerAddress) -> Questions:
    return GrpcQuestions(address) if address.is_grpc else HttpQuestions(address)
