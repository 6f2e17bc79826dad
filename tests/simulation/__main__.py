# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.simulation` runs scenarios of seeds."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.scenario import PROFILES, Run, make_scenario


def main() -> int:
    """Run scenarios; returns 1 if there was a finding."""
    parser = argparse.ArgumentParser(prog="scripts/simulate")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, default="mixed")
    options = parser.parse_args()
    has_found = False
    for seed in range(options.seed, options.seed + options.count):
        scenario = make_scenario(seed, options.profile)
        result = Run(scenario).run()
        has_found |= bool(result.findings)
        sys.stdout.write(
            f"{options.profile} {seed}: {result.calls} calls in {result.virtual_s:.1f} s, "
            f"{result.real_s:.2f} s real, {len(scenario.faults)} faults, "
            f"{scenario.front_ends} front ends, "
            f"{'repository' if scenario.has_repository else 'bound'}, {result.trace[:16]}, "
            f"{len(result.findings)} findings\n"
        )
        for finding in result.findings[:8]:
            sys.stdout.write(f"    {finding}\n")
        sys.stdout.flush()
    return int(has_found)


if __name__ == "__main__":
    sys.exit(main())
