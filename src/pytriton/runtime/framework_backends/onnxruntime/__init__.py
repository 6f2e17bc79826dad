# SPDX-License-Identifier: Apache-2.0
"""The backend that serves ONNX models with ONNX Runtime; its story is in `model.py`."""
