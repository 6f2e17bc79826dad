# SPDX-License-Identifier: Apache-2.0
"""Helpers of `pytriton check`, under the names from which users import them."""
