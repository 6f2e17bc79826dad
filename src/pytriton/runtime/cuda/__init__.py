# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs in processes that run models: CUDA's driver, registered memory, device arrays."""
