"""What the fake server's cluster has, in the shapes of rest-server 1.8.1 (and of LTP, which keeps them)."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

SKUS = {"V100": {"gpu": 1, "cpu": 6, "memory": 56334}, "CPU": {"gpu": 0, "cpu": 4, "memory": 8192}}


def resources(gpu: int, cpu: int, memory: int) -> dict[str, int]:
    """One of a virtual cluster's three sums, with the names that older clients know."""
    return {"cpu": cpu, "memory": memory, "gpu": gpu, "vCores": cpu, "GPUs": gpu}


def virtual_cluster(used: int, healthy: int, total: int) -> dict[str, Any]:
    """A virtual cluster of so many GPUs, each with 6 CPUs and 1000 MB."""
    return {
        "capacity": 50,
        "usedCapacity": 10,
        "dedicated": False,
        "resourcesUsed": resources(used, 6 * used, 1000 * used),
        "resourcesGuaranteed": resources(healthy, 6 * healthy, 1000 * healthy),
        "resourcesTotal": resources(total, 6 * total, 1000 * total),
    }


VIRTUAL_CLUSTERS = {"default": virtual_cluster(3, 8, 10), "prod": virtual_cluster(4, 4, 4)}
STORAGES = {
    "team": {"name": "team", "share": True, "volumeName": "team-pv", "default": True},
    "datasets": {"name": "datasets", "share": False, "volumeName": "data-pv", "default": False},
}
DETAILS = {
    "team": {
        "name": "team",
        "share": True,
        "volumeName": "team-pv",
        "type": "azureBlob",
        "data": {"containerName": "box", "accountName": "acc", "accountKey": "storage-key-9"},
        "readOnly": False,
        "secretName": "team-secret",
    }
}


def answer(path: str, query: str, user: str) -> tuple[int, Any] | None:
    """The answer about the cluster itself; None for another path."""
    if path == "/info":
        version = {"name": "PAI RESTful API", "version": "v1.8.1", "launcherType": "k8s"}
        return 200, version | {"authnMethod": "basic"}
    if path == "/virtual-clusters":
        return 200, VIRTUAL_CLUSTERS
    if path.startswith("/users/"):
        return 200, {"username": path.removeprefix("/users/"), "virtualCluster": ["default"]}
    if path == "/storages":
        return 200, {"storages": list(STORAGES.values())}
    if path.startswith("/storages/"):
        return _storage(path.removeprefix("/storages/"), user)
    if path == "/cluster/sku-types":
        wanted = parse_qs(query).get("vc", ["default"])[0]
        if wanted not in VIRTUAL_CLUSTERS:
            message = f"Cannot get sku types for virtual clyster {wanted}."
            return 404, {"code": "NoVirtualClusterError", "message": message}
        return 200, SKUS
    return None


def _storage(name: str, user: str) -> tuple[int, Any]:
    if name in DETAILS:
        return 200, DETAILS[name]
    if name in STORAGES:
        message = f"User {user} is not allowed to access {name}."
        return 403, {"code": "ForbiddenUserError", "message": message}
    return 404, {"code": "NoStorageError", "message": f"Storage {name} is not found."}


def attempt(number: int, attempts: int) -> dict[str, Any]:
    """One entry of a job's attempts: all but the newest have failed."""
    newest = number == attempts - 1
    return {
        "attemptIndex": number,
        "state": "RUNNING" if newest else "FAILED",
        "exitCode": None if newest else 255,
        "exitPhrase": None if newest else "PAIRuntimeUnknownFailed",
        "attemptStartedTime": 1.7e12,
        "attemptCompletedTime": None if newest else 1.71e12,
        "isLatest": newest,
    }
