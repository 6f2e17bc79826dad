# SPDX-License-Identifier: Apache-2.0
"""Small helpers that users and tests of the binding API import by module."""
