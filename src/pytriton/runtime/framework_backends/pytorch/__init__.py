# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend: TorchScript, `.pt2` packages, and modules in Python."""
