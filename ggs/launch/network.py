"""Which network interface owns an address: what gloo and NCCL have to be told on a cluster's nodes.

OpenPAI's tasks see all interfaces of their node (docker0, cni0, lo ...). Left alone, gloo takes what
the host name resolves to and NCCL the first that looks usable; both are often wrong. Linux only.
"""

import ctypes
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFCONF = 0x8912
# struct ifreq: a name of 16 bytes, then a union as large as struct ifmap (24 bytes, 16 on 32 bits).
_IFREQ_BYTES = 40 if struct.calcsize("P") == 8 else 32
_MAX_ADDRESSES = 4096


def find_interface(address: str) -> str | None:
    """The name of the interface that has this IP address, or None if no interface has it.

    Secondary addresses count. All of 127.0.0.0/8 belongs to the loopback interface, whose other
    addresses no list of addresses shows.
    """
    wanted = ipaddress.ip_address(address)
    if wanted.version == 6:
        return _ipv6_interface(wanted)
    owners = ipv4_addresses()
    return owners.get(str(wanted)) or (owners.get("127.0.0.1") if wanted.is_loopback else None)


def is_local(address: str) -> bool:
    """Whether a socket of this machine can be bound to this IP address."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def interface_names() -> frozenset[str]:
    """The names of all interfaces of this machine."""
    return frozenset(name for _, name in socket.if_nameindex())


def ipv4_addresses() -> dict[str, str]:
    """Interface by IPv4 address; of an alias (``eth0:1``), the interface without the label."""
    buffer = bytearray(_IFREQ_BYTES * _MAX_ADDRESSES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        request = bytearray(struct.pack("iP", len(buffer), pointer))
        fcntl.ioctl(control.fileno(), _SIOCGIFCONF, request)
    size = struct.unpack("iP", request)[0]
    owners: dict[str, str] = {}
    for start in range(0, size, _IFREQ_BYTES):
        entry = buffer[start : start + _IFREQ_BYTES]
        name = bytes(entry[:16]).split(b"\0")[0].decode(errors="replace").split(":")[0]
        owners.setdefault(socket.inet_ntoa(bytes(entry[20:24])), name)
    return owners


def _ipv6_interface(wanted: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str | None:
    table = Path("/proc/net/if_inet6")
    if not table.exists():
        return None
    for line in table.read_text().splitlines():
        number, *_, name = line.split()
        if ipaddress.IPv6Address(bytes.fromhex(number)) == wanted:
            return name
    return None
