"""The cost model, and what "auto" makes of it."""

import pytest

from ggs.exchange import forecast, split
from ggs.exchange.cost import ASSUMED_CPU, ExchangeCost, Network, ring_bytes
from ggs.text import readable_bytes
from ggs.wire import message_size

SLOW = Network(1e8, 1e-4, 8e9)


def test_costs_are_the_exchanges_own_bytes() -> None:
    numel, count = 25_557_032, 25_557
    gather = forecast.allgather_cost(numel, count, 16, "fp32")
    assert gather.bytes_sent == 15 * message_size(numel, count, "fp32")
    ranges = split.ranges_of((0, numel), (count,), 16, "fp32", None)
    assert forecast.split_cost(numel, count, 16, "fp32").bytes_sent == forecast.split_bytes(
        ranges, "fp32"
    )


@pytest.mark.parametrize("size", [2, 3, 4, 16, 128])
def test_a_small_model_keeps_allgather(size: int) -> None:
    for network in (ASSUMED_CPU, SLOW):
        assert forecast.cheapest_flat(61_706, 62, size, "fp32", network, 1)[0] == "allgather"


def test_many_workers_split_a_large_model() -> None:
    numel, count = 61_100_840, 61_101
    choices = [
        forecast.cheapest_flat(numel, count, n, "fp32", ASSUMED_CPU, 1)[0] for n in (4, 16, 256)
    ]
    assert choices == ["allgather", "split", "split"]
    dense = forecast.cheapest_flat(numel, numel, 4, "fp32", ASSUMED_CPU, 1)[1]
    assert dense.bytes_sent == pytest.approx(ring_bytes(4 * numel, 4), rel=1e-3)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("size", "local"), [(2, 2), (8, 8), (16, 2), (32, 8), (1024, 8)])
def test_auto_takes_only_what_keeps_the_algorithm(size: int, local: int, device: str) -> None:
    for numel in (61_706, 25_557_032, 61_100_840):
        for count in (numel // 1000, numel // 100, numel):
            name, cost = forecast.choose(numel, count, size, local, "fp32", device)
            assert name in ("allgather", "split")
            assert cost.local_bytes == 0


def test_where_hierarchical_is_cheaper_there_is_a_hint() -> None:
    """Several GPUs a node, several nodes, and by the margin."""
    numel, count = 61_100_840, 611_008
    text = forecast.hint(numel, count, 8, 4, "fp32", "cuda")
    name, tiers = forecast.hierarchical_cost(numel, count, 2, 4, "fp32", "cuda")
    _, flat = forecast.choose(numel, count, 8, 4, "fp32", "cuda")
    assert name == "allgather"
    assert text is not None
    assert (
        f"send {readable_bytes(tiers.node_bytes(4))} instead of {readable_bytes(flat.node_bytes(4))}"
        in text
    )
    assert tiers.node_bytes(4) < flat.node_bytes(4) / 2
    assert "averages gradients inside a node before the optimizer" in text
    assert "\n" not in text
    silent = [(4, 4, "cuda"), (8, 1, "cuda"), (8, 3, "cuda"), (8, 4, "cpu")]
    assert [forecast.hint(numel, count, n, m, "fp32", device) for n, m, device in silent] == [
        None
    ] * 4
    assert forecast.hint(61_706, 62, 4, 2, "fp32", "cuda") is None


def test_shared_networks_count_pairwise_bytes_for_every_worker_of_a_node() -> None:
    network = Network(8e6, 0.0, 1e9)
    cost = ExchangeCost(3e6, 0, 0, 0, pairwise_bytes=1e6)
    assert cost.seconds(network, 1) == pytest.approx(3)
    assert cost.seconds(network, 8) == pytest.approx(10)
