# SPDX-License-Identifier: Apache-2.0
"""What a worker imports."""

from tests.contract.worker_models import CoroutineStreamModel

TritonPythonModel = CoroutineStreamModel
