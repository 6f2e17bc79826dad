# SPDX-License-Identifier: Apache-2.0
"""The little of the API of Kubernetes that Helm's `lookup` asks for, with one Ray cluster in it."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

NAME = "rayclusters"
PATH = f"/apis/ray.io/v1/namespaces/default/{NAME}/pytriton-ray"


def documents(image: str) -> dict[str, Any]:
    resource = {
        "name": NAME,
        "singularName": "raycluster",
        "namespaced": True,
        "kind": "RayCluster",
        "verbs": ["get", "list"],
    }
    version = {"groupVersion": "ray.io/v1", "version": "v1"}
    group = {"name": "ray.io", "versions": [version], "preferredVersion": version}
    template = {"spec": {"containers": [{"name": "ray-head", "image": image}]}}
    return {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        "/apis/ray.io/v1": {
            "kind": "APIResourceList",
            "groupVersion": "ray.io/v1",
            "resources": [resource],
        },
        PATH: {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": "pytriton-ray", "namespace": "default"},
            "spec": {"headGroupSpec": {"template": template}},
        },
    }


@contextlib.contextmanager
def cluster_with_ray(image: str) -> Iterator[str]:
    """A server of the API, in which Ray's pods have this image; gives its address."""
    known = documents(image)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found = known.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "code": 404, "reason": "NotFound"})
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
