from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import UnreachableError
from ggs.pai.client import job_facts, status
from tests.pai.fake_server import task


def facts(config: dict[str, Any] | None = None, **fields: Any) -> job_facts.TaskFacts:
    answer = {
        "name": "one",
        "jobStatus": {"state": "RUNNING"},
        "taskRoles": {"worker1": {"taskStatuses": [task("worker1", 0, "RUNNING", **fields)]}},
    }
    (found,) = job_facts.tasks(status.read(answer), config or {})
    return found


def test_ports_are_numbers_or_lists_of_them() -> None:
    """OpenPAI writes ``"1,2"`` (1.x) or a number (jobs of before 1.0)."""
    found = facts(containerPorts={"ssh": 22, "a": "1,2", "b": "", "c": "x", "d": None, "e": "-1"})
    assert found.ports == {"ssh": [22], "a": [1, 2], "b": [], "c": [], "d": [], "e": []}
    assert found.ssh is None  # no address
    assert facts(containerIp="10.0.0.7").ssh is None  # no port
    assert facts(containerPorts=[1], containerIp="10.0.0.7").ports == {}


@pytest.mark.parametrize(
    ("mask", "indices"),
    [(1, [0]), (0b1010, [1, 3]), (0, None), (None, None), (True, None), ("3", None), (-1, None)],
)
def test_gpus_are_a_bit_mask(mask: object, indices: list[int] | None) -> None:
    assert facts(containerGpus=mask).gpu_indices == indices


@pytest.mark.parametrize("role", ["worker1", "Worker_1", "worker-1"])
def test_gpus_are_found_by_the_name_that_openpai_makes_of_the_role(role: str) -> None:
    config = {"taskRoles": {role: {"resourcePerInstance": {"gpu": 4}}}}
    assert facts(config).gpus == 4
    for other in ({}, {"taskRoles": []}, {"taskRoles": {role: None}}, {"taskRoles": {role: {}}}):
        assert facts(other).gpus is None


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        ({"com.microsoft.pai.runtimeplugin": [{"plugin": "ssh"}]}, True),
        ({"com.microsoft.pai.runtimeplugin": [{"plugin": "tensorboard"}, 3]}, False),
        ({"com.microsoft.pai.runtimeplugin": "ssh"}, False),
        ([], False),
        (None, False),
    ],
)
def test_whether_a_file_asks_for_ssh(extras: object, expected: bool) -> None:
    assert job_facts.has_ssh({"extras": extras}) is expected


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = [
    "containerIp",
    "containerNodeName",
    "containerPorts",
    "containerGpus",
    "containerExitCode",
]
FIELDS += ["containerExitSpec", "containerExitDiagnostics", "retries"]


@pytest.mark.fuzz
@given(st.dictionaries(st.sampled_from(FIELDS), anything), anything)
def test_any_task_is_read_or_refused(fields: dict[str, Any], config: object) -> None:
    try:
        found = facts(config if isinstance(config, dict) else None, **fields)
    except UnreachableError:
        return
    for text in (found.address, found.node, found.exit_reason, found.ssh, *found.ports):
        assert text is None or text.isprintable()
