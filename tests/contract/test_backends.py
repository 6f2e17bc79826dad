# SPDX-License-Identifier: Apache-2.0
"""What every kind of backend promises: one suite for functions, model.py, frameworks, libraries."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.errors import ErrorCode
from tests.contract.backend_kinds import FUNCTIONS, KINDS, start_function, start_worker
from tests.python_backend.worker_rig import ZygoteRig


@pytest.fixture(scope="module")
def zygote():
    rig = ZygoteRig()
    yield rig
    rig.close()


@pytest.fixture(params=KINDS)
def instance(request, zygote, tmp_path):
    kind = request.param
    started = start_function(kind) if kind in FUNCTIONS else start_worker(kind, zygote, tmp_path)
    yield started
    assert started.stop()


def rows(count, size=3, start=1):
    return np.arange(start, start + count * size, dtype=np.float32).reshape(count, size)


def test_request_alone_is_answered(instance):
    (answer,) = instance.run(rows(1))

    assert np.array_equal(answer, rows(1))


def test_each_request_of_a_batch_gets_its_rows(instance):
    for counts in ((1, 1, 1), (1, 3, 2)):
        sent = [rows(count, start=100 * number) for number, count in enumerate(counts, 1)]
        answers = instance.run(*sent)

        assert [each.tolist() for each in answers] == [each.tolist() for each in sent]


@pytest.mark.parametrize("size", [9_000, 1_000_000])
def test_tensor_in_shared_memory_is_carried(instance, size):
    for start in range(1, 4):
        sent = [rows(1, size, start), rows(1, size, 100 * start)]
        answers = instance.run(*sent)

        assert all(np.array_equal(*each) for each in zip(answers, sent, strict=True))


def test_many_batches_one_after_the_other(instance):
    for number in range(1, 100):
        (answer,) = instance.run(rows(1, start=number))

        assert answer[0, 0] == number


def test_batch_that_fails_is_answered_and_the_next_one_runs(instance):
    failed = instance.run(np.full((1, 3), -1, np.float32), rows(2))
    (answer,) = instance.run(rows(1))

    assert [("broken" in each.error, each.error_code) for each in failed] == [
        (True, ErrorCode.INTERNAL)
    ] * 2
    assert all(each.origin is not None for each in failed)
    assert np.array_equal(answer, rows(1))


def test_error_for_clients_keeps_its_text_and_its_code(instance):
    (refused,) = instance.run(np.full((1, 3), -2, np.float32))

    assert (refused.error, refused.error_code) == ("refused", ErrorCode.INVALID_ARG)


def test_cancellation_of_what_is_over_harms_nothing(instance):
    instance.run(rows(1))
    instance.cancel(1, 0)
    instance.cancel(77, 3)
    (answer,) = instance.run(rows(1))

    assert np.array_equal(answer, rows(1))
