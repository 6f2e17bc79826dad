# SPDX-License-Identifier: Apache-2.0
"""In a worker process: imports a bound function, and calls it as its own process would."""
