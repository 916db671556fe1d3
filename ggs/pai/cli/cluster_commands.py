"""``pai cluster``: the clusters that the user knows by an alias."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ggs.errors import ConfigurationError
from ggs.pai.cli import terminal
from ggs.pai.cli.options import Json, known_aliases

app = typer.Typer(
    no_args_is_help=True,
    help="Clusters by alias, shared with openpaisdk.\n\n"
    "~/.openpai/clusters.yaml is read and written, clusters.json (the JavaScript SDK) is read.",
)

Alias = Annotated[
    str,
    typer.Argument(
        metavar="ALIAS", help="Your short name for the cluster.", autocompletion=known_aliases
    ),
]


@app.command()
def add(
    alias: Alias,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The portal's address: https://pai.example.org")
    ],
    user: Annotated[
        str | None, typer.Option(help="Your name on the cluster. [default: the token's]")
    ] = None,
    login: Annotated[
        bool, typer.Option("--login", help="Log in with a password and store the token it gives.")
    ] = False,
    ca_bundle: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) to trust instead of the machine's.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not check the certificate: others may listen.")
    ] = False,
    check: Annotated[bool, typer.Option(help="Ask the cluster whether it takes the token.")] = True,
    as_json: Json = False,
) -> None:
    """Add a cluster, or change one.

    The token (portal: your name, Profile, Tokens) or the password comes from PAI_TOKEN or
    PAI_PASSWORD, a pipe, or a prompt; never from the command line, which others can see. Only the
    token is stored, readable by you alone.
    """
    from ggs.pai.client import clusters, tokens
    from ggs.pai.client.clusters import Cluster
    from ggs.pai.client.rest import Client

    uri = clusters.check_uri(address)
    if ca_bundle is not None:
        ca_bundle = ca_bundle.expanduser().absolute()
    if insecure:
        terminal.warn(f"the certificate of {uri} will not be checked: others may read the token")
    elif uri.startswith("http://"):
        terminal.warn(f"{uri} is not encrypted: others on the way may read the token")
    if login:
        if not user:
            raise ConfigurationError("--login needs --user, your name on the cluster")
        cluster = Cluster(alias, uri, user, ca_bundle=ca_bundle, insecure=insecure)
        password = os.environ.get("PAI_PASSWORD") or terminal.read_secret(f"Password of {user}")
        with Client(cluster) as client:
            token = client.login(password)
    else:
        token = tokens.check_token(
            os.environ.get("PAI_TOKEN") or terminal.read_secret(f"Token for {alias}")
        )
    owner = tokens.owner(token)
    if owner is None and check:
        with Client(
            Cluster(alias, uri, "", ca_bundle=ca_bundle, insecure=insecure), token
        ) as client:
            owner = client.token_owner()
    if user and owner and user != owner:
        raise ConfigurationError(
            f"the token belongs to {owner!r}, not to {user!r}: leave out --user"
        )
    user = user or owner
    if not user:
        raise ConfigurationError("the token does not say whose it is: give --user")
    cluster = Cluster(alias, uri, user, token, ca_bundle=ca_bundle, insecure=insecure)
    if check:
        with Client(cluster, token) as client:
            client.jobs(limit=1)
    replaced = clusters.add(cluster)
    terminal.say(
        f"{'changed' if replaced else 'added'} {alias}: {user} on {uri} ({clusters.yaml_path()})"
    )
    if as_json:
        terminal.result_json({"alias": alias, "address": uri, "user": user, "replaced": replaced})


@app.command("list")
def list_clusters(as_json: Json = False) -> None:
    """List the known clusters."""
    from ggs.pai.client import clusters

    known, warnings = clusters.load()
    for warning in warnings:
        terminal.warn(warning)
    if as_json:
        terminal.result_json(
            [
                {
                    "alias": item.alias,
                    "address": item.uri,
                    "user": item.user,
                    "token": item.token is not None,
                    "file": item.source,
                }
                for item in known
            ]
        )
        return
    terminal.table(
        ("ALIAS", "ADDRESS", "USER", "TOKEN", "FILE"),
        [
            (item.alias, item.uri, item.user, "yes" if item.token else "no", item.source)
            for item in known
        ],
    )


@app.command()
def remove(alias: Alias, as_json: Json = False) -> None:
    """Forget a cluster and its token."""
    from ggs.pai.client import clusters

    clusters.remove(alias)
    terminal.say(f"removed {alias}")
    if as_json:
        terminal.result_json({"alias": alias})
