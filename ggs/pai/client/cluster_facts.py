"""What a cluster has: virtual clusters and their free GPUs, storages, SKU types.

As rest-server answers it (controllers/v2/virtual-cluster.js, storage.js, cluster.js, user.js, info.js).
Neither OpenPAI nor LTP keeps a list of images: the names in the portal's menu are part of the portal.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ggs.errors import PAIError, UnreachableError
from ggs.pai.client.rest import Client
from ggs.pai.job.stored import MASK

SECRET_FIELDS = frozenset({"accountKey", "accountSASToken", "password"})
"""Of a storage's ``data``: OpenPAI sends them to everyone who may mount the storage."""


@dataclass(frozen=True)
class VirtualCluster:
    """Resources of a virtual cluster; memory in MB."""

    name: str
    gpus_free: int
    """Healthy and unused."""
    gpus_used: int
    gpus_total: int
    """Those of broken nodes too."""
    cpus_free: int
    memory_mb_free: int
    allowed: bool | None
    """Whether this user may submit to it; None where the server does not say."""


@dataclass(frozen=True)
class SkuType:
    """One unit of a HiveD cluster's nodes, of which a task gets whole ones."""

    name: str
    gpus: int
    cpus: int
    memory_mb: int


def virtual_clusters(client: Client) -> list[VirtualCluster]:
    """All virtual clusters, by name."""
    answer = _mapping(client.get("/virtual-clusters", "the virtual clusters"), "virtual clusters")
    allowed = _allowed_clusters(client)
    found = []
    for name, item in sorted(answer.items()):
        fields = _mapping(item, f"virtual cluster {name!r}")
        used, healthy, total = (
            _mapping(fields.get(f"resources{kind}", {}), f"virtual cluster {name!r}")
            for kind in ("Used", "Guaranteed", "Total")
        )
        free = {key: max(0, _count(healthy, key) - _count(used, key)) for key in healthy}
        found.append(
            VirtualCluster(
                name=name,
                gpus_free=free.get("gpu", 0),
                gpus_used=_count(used, "gpu"),
                gpus_total=_count(total, "gpu"),
                cpus_free=free.get("cpu", 0),
                memory_mb_free=free.get("memory", 0),
                allowed=None if allowed is None else name in allowed,
            )
        )
    return found


def _allowed_clusters(client: Client) -> list[Any] | None:
    try:
        user = client.get(f"/users/{quote(client.cluster.user)}", "the user's rights")
    except PAIError:  # a cluster may keep them to itself
        return None
    names = user.get("virtualCluster") if isinstance(user, dict) else None
    return names if isinstance(names, list) else None


def storages(client: Client) -> list[dict[str, Any]]:
    """The storages that the user may mount: ``name``, ``share`` and ``default`` of each."""
    answer = _mapping(client.get("/storages", "the storages"), "storages")
    found = answer.get("storages")
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise UnreachableError("OpenPAI's list of storages is not a list of storages")
    return found


def storage(client: Client, name: str) -> dict[str, Any]:
    """One storage: its ``type``, ``data`` (server, path …) and ``readOnly``; its secrets masked."""
    path = f"/storages/{quote(name, '', errors='replace')}"
    answer = _mapping(client.get(path, f"storage {name!r}"), f"storage {name!r}")
    return _masked(answer)


def sku_types(client: Client, virtual_cluster: str | None = None) -> list[SkuType]:
    """The SKU types of the cluster or of one of its virtual clusters; none without HiveD."""
    parameters = {"vc": virtual_cluster} if virtual_cluster else None
    answer = client.get("/cluster/sku-types", "the SKU types", parameters)
    return [
        SkuType(name, _count(unit, "gpu"), _count(unit, "cpu"), _count(unit, "memory"))
        for name, item in sorted(_mapping(answer, "SKU types").items())
        for unit in [_mapping(item, f"SKU type {name!r}")]
    ]


def information(client: Client) -> dict[str, Any]:
    """The server's version, launcher and kind of login."""
    return _mapping(client.get("/info", "the cluster's version"), "version")


def _masked(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        key: MASK
        if key in SECRET_FIELDS
        else (_masked(value) if isinstance(value, dict) else value)
        for key, value in fields.items()
    }


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreachableError(f"OpenPAI's answer about its {what} is not understood")
    return value


def _count(resources: dict[str, Any], key: str) -> int:
    value = resources.get(key)
    # HiveD says null of what it does not know
    return int(value) if isinstance(value, int | float) and abs(value) < 1e15 else 0
