# SPDX-License-Identifier: Apache-2.0
"""What `triton_python_backend_utils` is made of."""
