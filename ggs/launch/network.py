"""Which network interface owns an address: what gloo and NCCL have to be told on a cluster's nodes.

OpenPAI's tasks see all interfaces of their node (docker0, cni0, lo ...). Left alone, gloo takes what
the host name resolves to and NCCL the first that looks usable; both are often wrong.
"""

import ipaddress
import socket

import psutil


def find_interface(address: str) -> str | None:
    """The name of the interface that has this IP address, or None if no interface has it.

    Secondary addresses count. All of 127.0.0.0/8 belongs to the loopback interface, whose other
    addresses no list of addresses shows.
    """
    wanted = ipaddress.ip_address(address)
    owners = interface_addresses()
    is_ipv4_loopback = wanted.version == 4 and wanted.is_loopback
    return owners.get(str(wanted)) or (owners.get("127.0.0.1") if is_ipv4_loopback else None)


def is_local(address: str) -> bool:
    """Whether a socket of this machine can be bound to this IP address."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def route_address(host: str) -> str | None:
    """The address of this machine from which packets to an IP address leave; None without a route.

    The kernel is asked: connecting a datagram socket sends nothing. To an address of this machine the
    answer is that address itself.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # any port: nobody is asked
        except OSError:
            return None
        return str(probe.getsockname()[0])


def interface_names() -> frozenset[str]:
    """The names of all interfaces of this machine."""
    return frozenset(name for _, name in socket.if_nameindex())


def interface_addresses() -> dict[str, str]:
    """Interface by IP address; of an alias (``eth0:1``), the interface without the label."""
    owners: dict[str, str] = {}
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(entry.address.partition("%")[0])  # without its scope
                owners.setdefault(str(address), name.partition(":")[0])
    return owners
