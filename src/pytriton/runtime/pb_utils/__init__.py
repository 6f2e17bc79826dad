# SPDX-License-Identifier: Apache-2.0
"""The implementation of `triton_python_backend_utils`."""
