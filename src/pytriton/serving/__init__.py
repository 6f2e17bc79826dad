# SPDX-License-Identifier: Apache-2.0
"""The server: models and schedulers (`engine`), model repositories, ports and protocols."""
