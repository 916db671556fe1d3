"""From an alias to a client that may ask: which cluster, which token, what to warn of."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ggs.errors import ConfigurationError
from ggs.pai.client import clusters, tokens
from ggs.pai.client.clusters import Cluster
from ggs.pai.client.rest import Client


def known_cluster(alias: str | None, warn: Callable[[str], None]) -> Cluster:
    """The cluster of ``--cluster`` or of the variable PAI_CLUSTER, or the only one there is."""
    known, warnings = clusters.load()
    for warning in warnings:
        warn(warning)
    return clusters.choose(known, alias or os.environ.get("PAI_CLUSTER") or None)


@contextmanager
def connect(
    alias: str | None, warn: Callable[[str], None], ask: Callable[[str], str]
) -> Iterator[Client]:
    """A client with a token: from PAI_TOKEN, the cluster file, a login, or ``ask`` at a terminal.

    Raises ConfigurationError if there is none, or if it belongs to another user than the cluster's.
    """
    cluster = known_cluster(alias, warn)
    if cluster.insecure:
        warn(f"the certificate of {cluster.uri} is not checked: others may read the token")
    token = os.environ.get("PAI_TOKEN")
    source = "PAI_TOKEN" if token else f"the token stored for {cluster.alias!r}"
    token = token or cluster.token
    if token is None and cluster.password is None:
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"there is no token for {cluster.alias!r}: set PAI_TOKEN, or store one with "
                f"'pai cluster add {cluster.alias} {cluster.uri}'"
            )
        source, token = "the token", ask(f"Token of {cluster.user} on {cluster.alias}")
    if token is not None:
        token = tokens.check_token(token)
        _warn_of_expiry(token, warn)
    with Client(cluster, token) as client:
        if token is None and cluster.password is not None:
            source, token = "the login", client.login(cluster.password)
        _require_own(client, token or "", source)
        yield client


def _require_own(client: Client, token: str, source: str) -> None:
    """Refuse a token of another user: it would act for them under the cluster's user's name."""
    cluster = client.cluster
    owner = tokens.owner(token) or client.token_owner()
    if owner == cluster.user:
        return
    raise ConfigurationError(
        f"{source} belongs to {owner!r}, but {cluster.alias!r} is the cluster of {cluster.user!r} "
        f"({cluster.source}): use {cluster.user}'s token, or store {owner}'s under an alias of its own "
        f"with 'pai cluster add ALIAS {cluster.uri}'"
    )


def _warn_of_expiry(token: str, warn: Callable[[str], None]) -> None:
    expiry = tokens.claims(token).get("exp")
    if isinstance(expiry, int | float) and expiry < time.time():
        warn("the token has expired: take a new one with 'pai cluster add'")
