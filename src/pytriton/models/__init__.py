# SPDX-License-Identifier: Apache-2.0
"""Import paths of PyTriton that tests of its users need."""
