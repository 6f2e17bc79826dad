# SPDX-License-Identifier: Apache-2.0
"""The process in which Helm works: reads cases as JSON, writes an answer for each."""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python


def answer(chart: helm_python.Chart, path: str, case: dict[str, Any]) -> Any:
    if "lint" in case:
        return helm_python.lint(path, case["lint"])
    if "set" in case:
        return helm_python.parse_set_string(",".join(case["set"]))
    try:
        chart.validate_schema(chart.merge_values(case["values"]))
        names = {"name": case["name"], "namespace": "default"}
        if case["cluster"]:
            with helm_python.Config(kube_apiserver=case["cluster"], namespace="default") as config:
                texts = config.render(chart, case["values"], **names)
        else:
            texts = chart.render(case["values"], **names)
    except helm_python.HelmError as error:
        return {"error": str(error)}
    return {"texts": texts}


def main() -> None:
    path = sys.argv[1]
    with helm_python.Chart.load(path) as chart:
        answers = [answer(chart, path, case) for case in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
