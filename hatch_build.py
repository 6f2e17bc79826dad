# SPDX-License-Identifier: Apache-2.0
"""Puts a software bill of materials into wheels: `pytriton-*.dist-info/sboms/pytriton.cdx.json`.

It names what the package asks for, in CycloneDX's JSON (PEP 770 says where it belongs). Which
versions were installed is known only afterwards: `cyclonedx-py environment` tells that.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
import uuid
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement

FOR_DEVELOPERS = ("test", "docs", "check", "dev")  # extras that no server has


class SbomHook(BuildHookInterface[Any]):
    """The hook of this project."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the file before a wheel is built."""
        if version == "editable":  # a checkout of a developer, which changes
            return
        core = self.metadata.core
        extras = {
            extra: texts
            for extra, texts in core.optional_dependencies.items()
            if not extra.startswith(FOR_DEVELOPERS)
        }
        bill = bill_of_materials(core.name, self.metadata.version, core.dependencies, extras)
        self._folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(self._folder.name, f"{core.name}.cdx.json")
        path.write_text(json.dumps(bill, indent=2) + "\n")
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, _build_data: dict[str, Any], _path: str) -> None:
        """Remove the file, which is in the wheel now."""
        if version != "editable":
            self._folder.cleanup()


def bill_of_materials(
    name: str, version: str, required: list[str], optional: dict[str, list[str]]
) -> dict[str, Any]:
    """Returns the document. Equal sources give equal documents, so it has no time."""
    own = f"pkg:pypi/{name}@{version}"
    components: dict[str, dict[str, Any]] = {}
    groups = [("required", required), *(("optional", texts) for texts in optional.values())]
    for scope, texts in groups:
        for text in texts:
            package = Requirement(text).name.lower().replace("_", "-")
            if package == name:  # an extra that names others
                continue
            component = components.setdefault(
                package,
                {
                    "type": "library",
                    "bom-ref": f"pkg:pypi/{package}",
                    "name": package,
                    "purl": f"pkg:pypi/{package}",
                    "scope": scope,
                    "properties": [],
                },
            )
            wanted = {"name": "pytriton:requirement", "value": text}
            if wanted not in component["properties"]:
                component["properties"].append(wanted)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": name,
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": list(components.values()),
        "dependencies": [
            {"ref": own, "dependsOn": [each["bom-ref"] for each in components.values()]}
        ],
    }
