# SPDX-License-Identifier: Apache-2.0
"""Import paths of PyTriton that users need in their tests."""
