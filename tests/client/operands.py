# SPDX-License-Identifier: Apache-2.0
"""The two inputs that tests give to the model `AddSub`."""

from __future__ import annotations

import numpy as np

A = np.array([1, 2], np.float32)
B = np.array([10, 20], np.float32)
