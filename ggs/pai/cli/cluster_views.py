"""``pai cluster info``, ``virtual-clusters``, ``storages``, ``skus``: what a cluster has."""

from typing import Annotated

import typer

from ggs.pai.cli import terminal
from ggs.pai.cli.options import ClusterOption, Json

app = typer.Typer()


@app.command()
def info(cluster: ClusterOption = None, as_json: Json = False) -> None:
    """Show version and login of a cluster, and you.

    "user" is who the server takes the token for.
    """
    from ggs.pai.client import cluster_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean

    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        facts = cluster_facts.information(client) | {
            "address": client.cluster.uri,
            "user": client.token_owner(),
        }
    if as_json:
        terminal.result_json(facts)
        return
    for key, value in facts.items():
        terminal.result(f"{clean(key, 30):<14}{clean(str(value), 200)}")


@app.command("virtual-clusters")
def virtual_clusters(cluster: ClusterOption = None, as_json: Json = False) -> None:
    """List virtual clusters and their free GPUs."""
    from ggs.pai.client import cluster_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean

    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        found = cluster_facts.virtual_clusters(client)
    if as_json:
        terminal.result_json(found)
        return
    allowed = {True: "yes", False: "no", None: None}
    terminal.table(
        ("NAME", "GPUS FREE", "USED", "TOTAL", "CPUS FREE", "MEMORY FREE (MB)", "YOURS"),
        [
            (
                clean(item.name, 60),
                *(item.gpus_free, item.gpus_used, item.gpus_total),
                *(item.cpus_free, item.memory_mb_free, allowed[item.allowed]),
            )
            for item in found
        ],
    )


@app.command()
def storages(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One storage, in detail.")
    ] = None,
    cluster: ClusterOption = None,
    as_json: Json = False,
) -> None:
    """List the storages for you, or show one.

    What a storage needs to be mounted by hand (keys, passwords) is masked.
    """
    from ggs.pai.client import cluster_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean

    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        detail = None if name is None else cluster_facts.storage(client, name)
        found = cluster_facts.storages(client) if detail is None else []
    if as_json:
        terminal.result_json(found if detail is None else detail)
        return
    if detail is not None:
        data = detail.pop("data", None)
        for key, value in {**detail, **(data if isinstance(data, dict) else {})}.items():
            terminal.result(f"{clean(str(key), 30):<16}{clean(str(value), 200)}")
        return
    terminal.table(
        ("NAME", "DEFAULT", "SHARED"),
        [
            [clean(str(item.get("name")), 100)]
            + ["yes" if item.get(key) is True else "no" for key in ("default", "share")]
            for item in found
        ],
    )


@app.command()
def skus(
    virtual_cluster: Annotated[
        str | None, typer.Option(help="Only those of this virtual cluster.")
    ] = None,
    cluster: ClusterOption = None,
    as_json: Json = False,
) -> None:
    """List the SKU types of a HiveD cluster.

    They are the units of which tasks get whole ones.
    """
    from ggs.pai.client import cluster_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean

    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        found = cluster_facts.sku_types(client, virtual_cluster)
    if as_json:
        terminal.result_json(found)
        return
    terminal.table(
        ("NAME", "GPUS", "CPUS", "MEMORY (MB)"),
        [[clean(item.name, 60), item.gpus, item.cpus, item.memory_mb] for item in found],
    )
    if not found:
        terminal.say(
            "no SKU types: the cluster runs without HiveD, and job files ask for gpu and cpu"
        )
