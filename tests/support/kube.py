"""An in-memory Kubernetes API: discovery, objects, patches and immutable fields; enough for the real `helm`.

It schedules nothing, admits everything and binds no volumes. Threads serve requests on a free port.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from support.strategic_merge import merge

Object = dict[str, Any]
Key = tuple[str, str, str, str]

KINDS: Final[dict[str, dict[str, str]]] = {
    "v1": {
        "Pod": "pods",
        "Service": "services",
        "ConfigMap": "configmaps",
        "Secret": "secrets",
        "ServiceAccount": "serviceaccounts",
        "PersistentVolumeClaim": "persistentvolumeclaims",
    },
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets"},
    "batch/v1": {"Job": "jobs"},
    "networking.k8s.io/v1": {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "monitoring.coreos.com/v1": {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"},
    "gateway.networking.k8s.io/v1": {"HTTPRoute": "httproutes", "GRPCRoute": "grpcroutes"},
    "clickhouse.com/v1alpha1": {"ClickHouseCluster": "clickhouseclusters", "KeeperCluster": "keeperclusters"},
    "clickhouse.altinity.com/v1": {"ClickHouseInstallation": "clickhouseinstallations"},
}
"""Kubernetes' own kinds, then those of operators, which count as installed here."""
IMMUTABLE: Final = {
    "Deployment": (("spec", "selector"),),
    "StatefulSet": (("spec", "selector"), ("spec", "serviceName"), ("spec", "volumeClaimTemplates")),
    "Job": (("spec", "selector"), ("spec", "template")),
    "PersistentVolumeClaim": (("spec", "accessModes"), ("spec", "storageClassName")),
    "Service": (("spec", "clusterIP"),),
}
_PATH: Final = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?"
)


class KubeApi:
    """The server; a context manager. `objects` holds the objects that clients see."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.requests: list[tuple[str, str]] = []
        self._version = 0
        self._lock = threading.Lock()
        api = self

        class Handler(_Handler):
            kube = api

        ThreadingHTTPServer.request_queue_size = 128
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> KubeApi:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def write_config(self, path: Path) -> Path:
        """Write a kubeconfig for this server."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "memory", "cluster": {"server": url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "memory", "context": {"cluster": "memory", "user": "nobody"}}],
            "current-context": "memory",
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def find(self, kind: str, *, namespace: str = "default") -> dict[str, Object]:
        """Return the objects of a kind by name, without Helm's own records."""
        found = {
            name: item
            for (_, _, where, name), item in self.objects.items()
            if item["kind"] == kind and where == namespace
        }
        return {name: item for name, item in found.items() if not name.startswith("sh.helm.release")}

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any, kind: str) -> tuple[int, Object]:
        """Return the status and JSON of one request."""
        with self._lock:
            self.requests.append((method, path))
            discovered = _discover(path)
            if discovered is not None:
                return 200, discovered
            match = _PATH.fullmatch(path)
            if match is None:
                return _fail(404, "NotFound", f"no route {path}")
            version = match["core"] or match["group"]
            kinds = {plural: name for name, plural in KINDS.get(version, {}).items()}
            if match["resource"] not in kinds:
                return _fail(404, "NotFound", f"the server has no {match['resource']} in {version}")
            key = (version, match["resource"], match["namespace"] or "", match["name"] or "")
            return self._serve(method, key, kinds[match["resource"]], query, body, kind)

    def _serve(
        self, method: str, key: Key, kind: str, query: dict[str, list[str]], body: Any, content_type: str
    ) -> tuple[int, Object]:
        if method == "GET" and not key[3]:
            items = list(self._select(key, query.get("labelSelector", [""])[0]))
            return 200, {"kind": f"{kind}List", "apiVersion": key[0], "metadata": {}, "items": items}
        if method == "POST":
            key = (*key[:3], body["metadata"]["name"])
            if key in self.objects:
                return _fail(409, "AlreadyExists", f"{key[1]} {key[3]!r} already exists")
            body.setdefault("apiVersion", key[0])
            body.setdefault("kind", kind)
            body["metadata"].update(uid=str(uuid.uuid4()), namespace=key[2], creationTimestamp="2026-01-01T00:00:00Z")
            return 201, self._store(key, body)
        old = self.objects.get(key)
        if old is None:
            return _fail(404, "NotFound", f"{key[1]} {key[3]!r} not found")
        if method == "GET":
            return 200, old
        if method == "DELETE":
            del self.objects[key]
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        new = copy.deepcopy(old)
        if method == "PUT":
            new = {**body, "metadata": {**old["metadata"], **body["metadata"]}}
        else:
            merge(new, body, is_strategic="strategic" in content_type)
        changed = [".".join(path) for path in IMMUTABLE.get(kind, ()) if _dig(old, path) != _dig(new, path)]
        if changed:
            return _fail(422, "Invalid", f"{kind} {key[3]!r} is invalid: {', '.join(changed)}: field is immutable")
        return 200, self._store(key, new)

    def _store(self, key: Key, item: Object) -> Object:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = item
        return item

    def _select(self, key: Key, selector: str) -> Iterator[Object]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if "=" in part)
        for (version, resource, namespace, _), item in self.objects.items():
            labels = item["metadata"].get("labels") or {}
            is_listed = (version, resource) == key[:2] and key[2] in ("", namespace)
            if is_listed and all(labels.get(name) == value for name, value in wanted.items()):
                yield item


def _dig(item: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _fail(code: int, reason: str, message: str) -> tuple[int, Object]:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    return code, {**status, "code": code}


def _discover(path: str) -> Object | None:
    """Answer a discovery request, which clients send before they ask for objects."""
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = []
        for version in KINDS:
            if "/" in version:
                entry = {"groupVersion": version, "version": version.partition("/")[2]}
                groups.append({"name": version.partition("/")[0], "versions": [entry], "preferredVersion": entry})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version in KINDS:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources = [
            {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
            for kind, plural in KINDS[version].items()
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
    return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: a second would wait for the first one's acknowledgement
    kube: KubeApi

    def log_message(self, *args: object) -> None:
        """Write nothing to standard error."""

    def _answer(self) -> None:
        url = urlsplit(self.path)
        raw = self._read_body()
        body = _decode_protobuf(raw) if raw[:4] == b"k8s\0" else json.loads(raw) if raw else None
        status, item = self.kube.answer(
            self.command, url.path.rstrip("/"), parse_qs(url.query), body, self.headers.get("Content-Type", "")
        )
        answer = json.dumps(item).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        """Answer any method."""
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message, in order."""
    place = 0

    def varint() -> int:
        nonlocal place
        result = shift = 0
        while True:
            byte = raw[place]
            place += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while place < len(raw):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or varint()
        yield tag >> 3, raw[place : place + size]
        place += size


def _decode_protobuf(raw: bytes) -> Object:
    """Decode a Secret as Helm's driver writes it; it sends only this kind as protobuf."""
    envelope = dict(_fields(raw[4:]))
    kind = dict(_fields(envelope[1]))[2].decode()
    if kind != "Secret":
        return {}
    metadata: Object = {}
    item: Object = {"apiVersion": "v1", "kind": kind, "metadata": metadata}
    for number, value in _fields(envelope[2]):
        if number == 1:
            for inner, content in _fields(value):
                if inner in (1, 3):
                    metadata["name" if inner == 1 else "namespace"] = content.decode()
                if inner in (11, 12):
                    pair = dict(_fields(content))
                    where = metadata.setdefault("labels" if inner == 11 else "annotations", {})
                    where[pair[1].decode()] = pair.get(2, b"").decode()
        elif number == 2:
            pair = dict(_fields(value))
            item.setdefault("data", {})[pair[1].decode()] = base64.b64encode(pair.get(2, b"")).decode()
        elif number == 3:
            item["type"] = value.decode()
    return item
