# SPDX-License-Identifier: Apache-2.0
"""Measures this project beside NVIDIA PyTriton and Triton with its Python backend, in one run."""
