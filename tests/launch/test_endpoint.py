import socket

import psutil
import pytest

from ggs.errors import EnvironmentVariableError
from ggs.launch import endpoint
from ggs.launch.network import find_interface, route_address
from ggs.launch.placement import Devices, LaunchOptions, place, worker_variables

CPU_ONLY = Devices(visible=0, supported=False)


@pytest.fixture(scope="module")
def own_address() -> str:
    """An address of this machine that is not of the loopback interface."""
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family is socket.AF_INET and not entry.address.startswith("127."):
                return str(entry.address)
    pytest.skip("this machine has the loopback interface only")


def nodes(master: str, **more: str) -> dict[str, str]:
    return {
        "NNODES": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": master,
        "MASTER_PORT": "23456",
        **more,
    }


def test_the_route_to_an_own_address_is_that_address(own_address: str) -> None:
    assert route_address(own_address) == own_address
    assert route_address("127.0.0.1") == "127.0.0.1"
    assert route_address("::1") in ("::1", None)  # None without IPv6
    assert route_address("255.255.255.255") is None  # no datagram may go to everyone


def test_numbered_nodes_take_the_interface_of_the_route(own_address: str) -> None:
    placement = place(nodes(own_address), LaunchOptions(), CPU_ONLY)
    interface = find_interface(own_address)
    assert interface not in (None, "lo")
    assert placement.interface == interface
    added = worker_variables(placement, {})
    assert added["GLOO_SOCKET_IFNAME"] == interface
    assert added["NCCL_SOCKET_IFNAME"] == f"={interface}"
    chosen = worker_variables(placement, {"GLOO_SOCKET_IFNAME": "lo"})
    assert "GLOO_SOCKET_IFNAME" not in chosen


def test_without_a_route_the_interface_is_left_to_the_libraries() -> None:
    placement = place(nodes("255.255.255.255"), LaunchOptions(), CPU_ONLY)
    assert placement.interface is None
    assert "GLOO_SOCKET_IFNAME" not in worker_variables(placement, {})


def test_another_launchers_workers_of_several_nodes_take_it_too(own_address: str) -> None:
    interface = find_interface(own_address)
    worker = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": own_address}
    wanted = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    assert endpoint.variables_of_a_worker(worker) == wanted
    assert endpoint.variables_of_a_worker(worker | {"NCCL_SOCKET_IFNAME": "ib0"}) == {
        "GLOO_SOCKET_IFNAME": interface
    }
    for one_node in (
        {"LOCAL_WORLD_SIZE": "4"},
        {"WORLD_SIZE": "1"},
        {"MASTER_ADDR": "localhost"},
        {"GLOO_SOCKET_IFNAME": "lo"},
    ):
        assert endpoint.variables_of_a_worker(worker | one_node) == {}
    with pytest.raises(
        EnvironmentVariableError, match="MASTER_ADDR='no such host' cannot be resolved"
    ):
        endpoint.variables_of_a_worker(worker | {"MASTER_ADDR": "no such host"})


def test_a_name_that_is_loopback_here_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, *_: object, **__: object) -> list[object]:
        address = {"first-node": "127.0.1.1", "second-node": "10.0.0.2"}[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    said = endpoint.doubt(nodes("first-node"), 2)
    assert said is not None
    assert said.startswith("MASTER_ADDR='first-node' resolves to 127.0.1.1 on this machine")
    assert endpoint.doubt(nodes("first-node"), 1) is None
    for plain in ("second-node", "localhost", "127.0.0.1", "::1"):
        assert endpoint.doubt(nodes(plain), 2) is None
    assert endpoint.doubt({}, 2) is None
