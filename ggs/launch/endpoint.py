"""Where the nodes of a job meet, and by which of its own addresses and interfaces a node takes part."""

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggs.errors import EnvironmentVariableError
from ggs.launch import pai_names
from ggs.launch.environment import PAIEnvironment, TaskRole, integer, shown
from ggs.launch.network import find_interface, interface_names, is_local, route_address

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Endpoint:
    """The first node's address and ports, and what this node is to the others."""

    master: str
    """IP address of the first node."""
    ports: tuple[int, ...]
    """Ports of the first node, tried in this order; empty: any free one (one node only)."""
    address: str | None
    """This node's own address; None where no route leads to the first node."""

    @property
    def interface(self) -> str | None:
        """The interface that owns this node's address; None: left to the libraries."""
        return find_interface(self.address) if self.address else None


def find_endpoint(
    variables: Mapping[str, str], environment: PAIEnvironment | None, roles: Sequence[TaskRole]
) -> Endpoint:
    """The endpoint of a job of ``roles``, one for each node.

    MASTER_ADDR and MASTER_PORT win where a person has set them. On OpenPAI a node's own address is its
    ``PAI_HOST_IP``; elsewhere it is the one from which the route to the first node starts. Raises
    EnvironmentVariableError.
    """
    ports: tuple[int, ...] = ()
    master: str | None = None
    if "MASTER_PORT" in variables:
        ports = (integer("MASTER_PORT", variables["MASTER_PORT"], low=1, high=65535),)
    if "MASTER_ADDR" in variables:
        master = _resolve(variables["MASTER_ADDR"])
    if len(roles) == 1:
        return Endpoint(master or LOOPBACK, ports, master or LOOPBACK)
    if environment is None:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in variables]
        if master is None or missing:
            raise EnvironmentVariableError(
                f"NNODES={len(roles)} needs {' and '.join(missing)} as well"
            )
        return Endpoint(master, ports, route_address(master))
    address = environment.address(environment.role, environment.index)
    if not is_local(address):
        variable = pai_names.HOST_IP.format(key=environment.role.key, index=environment.index)
        raise EnvironmentVariableError(f"{variable}={address!r} is not an address of this machine")
    return Endpoint(
        master or environment.address(roles[0], 0),
        ports or environment.rendezvous_ports(roles[0], 0),
        address,
    )


def interface_variables(interface: str | None) -> dict[str, str]:
    """What tells gloo and NCCL to use an interface; nothing for None."""
    if interface is None:
        return {}
    # NCCL takes a bare name for a prefix: eth1 would also be eth10.
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}


def variables_of_a_worker(variables: Mapping[str, str]) -> dict[str, str]:
    """The same for a worker that another launcher has started, as far as it is not set already.

    Left alone, gloo listens where the host's name resolves to, often 127.0.0.1, where workers of other
    nodes do not find it. One node needs no interface.
    """
    size, local = (variables.get(name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if size == local or size == "1" or "GLOO_SOCKET_IFNAME" in variables:
        return {}
    master = _resolve(variables["MASTER_ADDR"])
    if ipaddress.ip_address(master).is_loopback:
        return {}
    wanted = interface_variables(Endpoint(master, (), route_address(master)).interface)
    return {name: value for name, value in wanted.items() if name not in variables}


def doubt(variables: Mapping[str, str], nodes: int) -> str | None:
    """Why nodes on other machines may not find this one, with the way out; None where nothing says so.

    MASTER_ADDR is often a host's name, and hosts' own names often resolve to 127.0.0.1 or 127.0.1.1.
    """
    name = variables.get("MASTER_ADDR", "").strip()
    if nodes == 1 or not name or name == "localhost" or name.startswith("127.") or name == "::1":
        return None
    master = _resolve(name)
    if not ipaddress.ip_address(master).is_loopback:
        return None
    return (
        f"MASTER_ADDR={shown(name)} resolves to {master} on this machine, where no other machine "
        "reaches it: give the address that the others reach it by"
    )


def check_interface(variables: Mapping[str, str]) -> None:
    """A name of an interface that is not there would make gloo fail late, with a C++ trace."""
    for name in filter(None, variables.get("GLOO_SOCKET_IFNAME", "").split(",")):
        known = interface_names()
        if name not in known:
            raise EnvironmentVariableError(
                f"GLOO_SOCKET_IFNAME={shown(name)} is no interface of this machine; it has "
                f"{', '.join(sorted(known))}"
            )


def _resolve(host: str) -> str:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise EnvironmentVariableError(f"MASTER_ADDR={shown(host)} cannot be resolved") from None
    # IPv4 first: a name such as localhost often has both, and gloo and NCCL speak IPv4 everywhere.
    entries.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(entries[0][4][0])
