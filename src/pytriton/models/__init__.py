# SPDX-License-Identifier: Apache-2.0
"""Import paths of PyTriton that its users' own tests rely on."""
