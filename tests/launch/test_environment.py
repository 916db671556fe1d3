"""OpenPAI's variables, and the placement that follows from them; nothing is started here."""

import socket
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import ConfigurationError, DeviceError, EnvironmentVariableError, GGSError
from ggs.launch import exit_codes
from ggs.launch.environment import PAIEnvironment, role_key
from ggs.launch.network import find_interface, interface_names, is_local
from ggs.launch.placement import Devices, LaunchOptions, is_worker, place, worker_variables
from ggs.pai.local.exit_spec import Reaction, classify
from tests.fuzz import EDITS, Edits, bounded, cases, damaged
from tests.launch.variables import pai_variables

CPU_ONLY = Devices(visible=0, supported=False)
EIGHT_GPUS = Devices(visible=8, supported=True)


def read(variables: Mapping[str, str]) -> PAIEnvironment:
    environment = PAIEnvironment.from_mapping(variables)
    assert environment is not None
    return environment


def test_every_field_of_a_task() -> None:
    variables = pai_variables(
        {"chief": 1, "Worker_A": 2},
        "Worker_A",
        1,
        ports={"SynPort": "20001,20002"},
        resources={"chief": "1,4,8192,512", "Worker_A": "4,16,65536,8192"},
        attempt="3_uid",
    )
    variables["FC_FRAMEWORK_ATTEMPT_ID"] = "3"
    environment = read(variables)
    assert [role.name for role in environment.roles] == ["chief", "Worker_A"]
    own = environment.role
    assert (own.name, own.key, own.tasks) == ("Worker_A", "workera", 2)
    assert (own.gpus, own.cpus, own.memory_mb, own.shm_mb) == (4, 16, 65536, 8192)
    assert (environment.index, environment.job) == (1, "ada~mnist")
    assert (environment.attempt, environment.attempt_uid) == (3, "3_uid")
    assert environment.address(own, 0) == "127.0.0.2"
    assert environment.ports(own, 1)["SynPort"] == (20001, 20002)


def test_the_environment_does_not_follow_its_source() -> None:
    variables = pai_variables({"worker": 2}, "worker", 0)
    environment = read(variables)
    variables["PAI_HOST_IP_worker_0"] = "10.0.0.9"
    assert environment.address(environment.role, 0) == "127.0.0.1"
    with pytest.raises(TypeError):
        environment.variables["PAI_JOB_NAME"] = "other"  # type: ignore[index]


@pytest.mark.parametrize("absent", ["PAI_CURRENT_TASK_ROLE_NAME", "PAI_TASK_ROLE_LIST"])
def test_other_platforms_use_pai_variables_too(absent: str) -> None:
    variables = pai_variables({"worker": 2}, "worker", 1)
    del variables[absent]
    assert PAIEnvironment.from_mapping(variables) is None
    assert place(variables, LaunchOptions(), CPU_ONLY).world_size == 1


def test_index_falls_back_to_older_variables() -> None:
    variables = pai_variables({"worker": 3}, "worker", 2)
    for name in ("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "PAI_TASK_INDEX"):
        del variables[name]
        assert read(variables).index == 2
    del variables["FC_TASK_INDEX"]
    with pytest.raises(EnvironmentVariableError, match="no task index"):
        read(variables)


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ({"SynPort": "20001"}, (20001, 15080)),
        ({"SynPort": "20001,20002"}, (20001, 20002, 15080)),
        ({"distributed_sync_port": "20001"}, (20001, 15080)),
        ({"tensorboard": "30000", "SyncPort": "20001"}, (20001, 30000, 15080)),
        ({"b": "2", "a": "1"}, (1, 2, 15080)),
        ({}, (15080,)),
    ],
)
@pytest.mark.parametrize("forms", ["both", "PAI_PORT_LIST_", "_PORT"])
def test_rendezvous_ports(ports: dict[str, str], expected: tuple[int, ...], forms: str) -> None:
    variables = pai_variables({"Worker": 1, "worker_b": 2}, "worker_b", 1, ports=ports)
    if forms == "PAI_PORT_LIST_":
        variables = {k: v for k, v in variables.items() if not k.endswith("_PORT")}
    if forms == "_PORT":
        variables = {k: v for k, v in variables.items() if not k.startswith("PAI_PORT_LIST_")}
    environment = read(variables)
    assert environment.rendezvous_ports(environment.find_role("worker_b"), 0) == expected


def test_a_port_label_keeps_capitals_and_underscores() -> None:
    variables = pai_variables({"worker": 1}, "worker", 0, ports={"My_Sync_Port": "20001"})
    environment = read(variables)
    assert environment.ports(environment.role, 0)["My_Sync_Port"] == (20001,)


@pytest.mark.parametrize(
    ("name", "key"), [("worker", "worker"), ("Worker_A", "workera"), ("PS0", "ps0")]
)
def test_role_key(name: str, key: str) -> None:
    assert role_key(name) == key


WHOLE = pai_variables({"worker": 2, "Chief_A": 1}, "worker", 1, ports={"SynPort": "20001,20002"})
LAUNCH = ["NNODES", "NODE_RANK", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "RANK", "WORLD_SIZE"]
TEXTS = st.one_of(
    st.none(),
    st.text(max_size=30),
    st.integers(-5, 70_000).map(str),
    st.sampled_from(["None", "127.0.0.2", "::1", "1,2", "0,4,8,0", "worker,Chief_A", "9" * 5000]),
)


@pytest.mark.fuzz
@cases(3)
@given(st.dictionaries(st.sampled_from([*WHOLE, *LAUNCH]), TEXTS, max_size=4), st.booleans())
def test_any_environment_is_a_placement_or_one_line(
    changes: dict[str, str | None], independent: bool
) -> None:
    changed = WHOLE | changes
    variables = {name: text for name, text in changed.items() if text is not None}
    message = None
    try:
        is_worker(variables)
        placement = place(variables, LaunchOptions(independent=independent), CPU_ONLY)
    except GGSError as error:
        message = str(error)
    if message is None:
        assert 0 <= placement.first_rank < placement.world_size
    else:
        assert "\n" not in message
        assert len(message) < 1000


@pytest.mark.fuzz
@cases(3)
@given(st.dictionaries(st.sampled_from([*WHOLE]), EDITS, min_size=1, max_size=3))
def test_any_damaged_environment_is_a_placement_or_one_line(changes: dict[str, Edits]) -> None:
    variables = dict(WHOLE)
    for name, edits in changes.items():
        # what the system hands over as text may hold bytes that are none
        content = damaged(WHOLE[name].encode(), edits).replace(b"\0", b"")
        variables[name] = content.decode(errors="surrogateescape")
    try:
        assert place(variables, LaunchOptions(), CPU_ONLY).world_size > 0
    except GGSError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 1000
        message.encode()  # can be printed


LONG = {
    "digits": "9" * 10**7,
    "commas": "," * 10**6,
    "roles": ",".join(f"r{number}" for number in range(10**5)),
    "ports": ",".join(["20001"] * 10**6),
    "spaces": " " * 10**7,
}


@pytest.mark.parametrize("name", [*WHOLE, "NNODES", "MASTER_PORT"])
def test_a_very_long_value_is_refused_or_ignored_at_once(name: str) -> None:
    for text in LONG.values():
        with bounded():
            message = ""
            try:
                place(WHOLE | {name: text}, LaunchOptions(), CPU_ONLY)
            except GGSError as error:
                message = str(error)
            assert len(message) < 1000


def lacking(*names: str) -> Callable[[dict[str, str]], None]:
    def change(variables: dict[str, str]) -> None:
        for name in names:
            del variables[name]

    return change


def setting(**values: str) -> Callable[[dict[str, str]], None]:
    return lambda variables: variables.update(values)


def without_ports(variables: dict[str, str]) -> None:
    for name in [name for name in variables if "PORT" in name]:
        del variables[name]


WRONG_ENVIRONMENTS: list[tuple[str, Callable[[dict[str, str]], None], str]] = [
    ("role not in list", setting(PAI_CURRENT_TASK_ROLE_NAME="ps"), "'ps' is not one of"),
    ("role in other spelling", setting(PAI_CURRENT_TASK_ROLE_NAME="Worker"), "'Worker' is not one"),
    ("empty list", setting(PAI_TASK_ROLE_LIST=""), "'' is no name of a task role"),
    ("comma at the end", setting(PAI_TASK_ROLE_LIST="worker,"), "'' is no name of a task role"),
    ("colliding roles", setting(PAI_TASK_ROLE_LIST="worker,work_er"), "are one role to OpenPAI"),
    ("role without count", setting(PAI_TASK_ROLE_LIST="worker,ps"), "COUNT_ps is not set"),
    ("no task count", lacking("PAI_TASK_ROLE_TASK_COUNT_worker"), "COUNT_worker is not set"),
    ("count zero", setting(PAI_TASK_ROLE_TASK_COUNT_worker="0"), "not between 1 and 10000"),
    (
        "count of words",
        setting(PAI_TASK_ROLE_TASK_COUNT_worker="two"),
        "'two' is not a whole number",
    ),
    ("count with fraction", setting(PAI_TASK_ROLE_TASK_COUNT_worker="2.0"), "not a whole number"),
    ("count huge", setting(PAI_TASK_ROLE_TASK_COUNT_worker="9" * 5000), "not a whole number"),
    ("index too large", setting(PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX="2"), "has tasks 0 to 1"),
    ("index negative", setting(PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX="-1"), "not between 0"),
    ("index empty", setting(PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=""), "not a whole number"),
    (
        "index in other digits",
        setting(PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX="٠"),
        "whole number",
    ),
    (
        "no address",
        lacking("PAI_HOST_IP_worker_0"),
        "PAI_HOST_IP_worker_0='': OpenPAI did not say",
    ),
    ("no gang", setting(PAI_HOST_IP_worker_0="None"), "gangAllocation"),
    ("address of words", setting(PAI_HOST_IP_worker_0="master"), "is not an IP address"),
    ("address with port", setting(PAI_HOST_IP_worker_0="10.0.0.1:80"), "is not an IP address"),
    ("own address elsewhere", setting(PAI_HOST_IP_worker_1="192.0.2.77"), "of this machine"),
    ("no ports", without_ports, "the tasks have no port to meet on"),
    ("port of words", setting(PAI_PORT_LIST_worker_0_SynPort="none"), "not a whole number"),
    ("port too large", setting(PAI_PORT_LIST_worker_0_SynPort="65536"), "not between 1 and 65535"),
    ("port zero", setting(PAI_PORT_LIST_worker_0_SynPort="0"), "not between 1 and 65535"),
    ("port list with gap", setting(PAI_PORT_LIST_worker_0_SynPort="1,,2"), "not a whole number"),
    ("ports contradict", setting(PAI_worker_0_SynPort_PORT="7"), "contradicts PAI_PORT_LIST"),
    ("resources short", setting(PAI_RESOURCE_worker="1,2"), "is not gpu,cpu,memoryMB,shmMB"),
    ("resources of words", setting(PAI_RESOURCE_worker="a,4,8,0"), "not a whole number"),
    ("resources negative", setting(PAI_RESOURCE_worker="-1,4,8,0"), "not between 0"),
    ("attempt of words", setting(FC_FRAMEWORK_ATTEMPT_ID="first"), "not a whole number"),
    (
        "node rank beyond",
        setting(NNODES="2", NODE_RANK="2"),
        "NODE_RANK='2' is not between 0 and 1",
    ),
    ("nodes of words", setting(NNODES="many"), "NNODES='many' is not a whole number"),
    ("master port", setting(MASTER_PORT="http"), "MASTER_PORT='http' is not a whole number"),
    ("master address", setting(MASTER_ADDR="no such host"), "cannot be resolved"),
    ("interface", setting(GLOO_SOCKET_IFNAME="eth77"), "'eth77' is no interface"),
]


@pytest.mark.parametrize(
    ("change", "message"),
    [pytest.param(change, message, id=name) for name, change, message in WRONG_ENVIRONMENTS],
)
def test_a_wrong_environment_is_one_line(
    change: Callable[[dict[str, str]], None], message: str
) -> None:
    variables = pai_variables({"worker": 2}, "worker", 1, ports={"SynPort": "20001"})
    change(variables)
    with pytest.raises(EnvironmentVariableError) as caught:
        place(variables, LaunchOptions(), CPU_ONLY)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert len(text) < 400
    assert exit_codes.of_error(caught.value) == exit_codes.NEVER_RETRY


@pytest.mark.parametrize(
    ("options", "resource", "devices", "error", "message"),
    [
        ({}, "4,8,9,0", CPU_ONLY, ConfigurationError, "built without GPU support"),
        (
            {},
            "4,8,9,0",
            Devices(2, True),
            DeviceError,
            "gives this task 4 GPUs, but PyTorch sees 2",
        ),
        ({"backend": "nccl"}, "0,8,9,0", EIGHT_GPUS, ConfigurationError, "a GPU for each worker"),
        ({"backend": "nccl", "workers": 9}, "8,8,9,0", EIGHT_GPUS, ConfigurationError, "has not 9"),
        ({"roles": ("ps",)}, "0,8,9,0", CPU_ONLY, EnvironmentVariableError, "no role 'ps'"),
    ],
)
def test_a_wrong_launch_is_one_line(
    options: dict[str, object],
    resource: str,
    devices: Devices,
    error: type[GGSError],
    message: str,
) -> None:
    variables = pai_variables(
        {"worker": 2}, "worker", 0, ports={"SynPort": "20001"}, resources={"worker": resource}
    )
    with pytest.raises(error, match=message) as caught:
        place(variables, LaunchOptions(**options), devices)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": -1},
        {"workers": 10**6},
        {"backend": "mpi"},
        {"rendezvous_timeout": 0},
        {"rendezvous_timeout": float("nan")},
        {"rendezvous_timeout": float("inf")},
    ],
)
def test_impossible_options(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        LaunchOptions(**options)  # type: ignore[arg-type]


def test_one_worker_per_gpu() -> None:
    resources = {"worker": "4,32,65536,0"}
    variables = pai_variables(
        {"worker": 2}, "worker", 1, ports={"SynPort": "20001,20002"}, resources=resources
    )
    placement = place(variables, LaunchOptions(), EIGHT_GPUS)
    assert placement.workers == (4, 4)
    assert (placement.first_rank, placement.world_size) == (4, 8)
    assert placement.backend == "nccl"
    assert (placement.master, placement.ports) == ("127.0.0.1", (20001, 20002, 15080))
    assert placement.interface == "lo"
    assert placement.run_id == "0_6c19c8a6"
    assert not placement.hide_gpus
    line = str(placement)
    assert line.startswith("ggs: task=worker-1(2) ranks=4-7(8) master=127.0.0.1:20001,20002,15080")
    assert "\n" not in line


def test_ranks_across_roles_with_different_sizes() -> None:
    roles = {"chief": 1, "worker": 2}
    resources = {"chief": "1,4,8192,0", "worker": "4,16,8192,0"}
    placements = [
        place(
            pai_variables(roles, role, index, ports={"SynPort": "20001"}, resources=resources),
            LaunchOptions(),
            EIGHT_GPUS,
        )
        for role, index in [("chief", 0), ("worker", 0), ("worker", 1)]
    ]
    assert [p.task for p in placements] == ["chief-0", "worker-0", "worker-1"]
    assert [p.first_rank for p in placements] == [0, 1, 5]
    assert {p.world_size for p in placements} == {9}
    assert {p.master for p in placements} == {"127.0.0.1"}
    assert len({p.layout for p in placements}) == 1


def test_gloo_where_one_role_has_no_gpu() -> None:
    resources = {"chief": "0,4,8192,0", "worker": "2,16,8192,0"}
    variables = pai_variables(
        {"chief": 1, "worker": 1}, "worker", 0, ports={"SynPort": "2"}, resources=resources
    )
    assert place(variables, LaunchOptions(), EIGHT_GPUS).backend == "gloo"


def test_chosen_roles_leave_the_others_out() -> None:
    roles = {"tensorboard": 1, "worker": 2}
    variables = pai_variables(roles, "worker", 1, ports={"SynPort": "20001"})
    placement = place(variables, LaunchOptions(roles=("worker",), workers=2), CPU_ONLY)
    assert placement.tasks == ("worker-0", "worker-1")
    assert placement.master == "127.0.0.2"
    with pytest.raises(ConfigurationError, match="does not include 'worker'"):
        place(variables, LaunchOptions(roles=("tensorboard",)), CPU_ONLY)


def test_a_task_without_gpus_hides_those_of_its_node() -> None:
    variables = pai_variables({"worker": 1}, "worker", 0)
    placement = place(variables, LaunchOptions(), EIGHT_GPUS)
    assert (placement.workers, placement.backend) == ((1,), "gloo")
    assert worker_variables(placement, {})["CUDA_VISIBLE_DEVICES"] == ""


def test_one_task_needs_neither_ports_nor_addresses() -> None:
    variables = pai_variables({"worker": 1}, "worker", 0)
    without_ports(variables)
    del variables["PAI_HOST_IP_worker_0"]
    placement = place(variables, LaunchOptions(workers=3), CPU_ONLY)
    assert (placement.master, placement.ports, placement.world_size) == ("127.0.0.1", (), 3)


def test_tasks_of_an_array_job_are_alone() -> None:
    variables = pai_variables({"worker": 4}, "worker", 2)
    without_ports(variables)
    placement = place(variables, LaunchOptions(independent=True), CPU_ONLY)
    assert (placement.tasks, placement.world_size) == (("worker-2",), 1)


def test_without_a_cluster() -> None:
    placement = place({}, LaunchOptions(workers=2), CPU_ONLY)
    assert (placement.master, placement.ports, placement.interface) == ("127.0.0.1", (), "lo")
    assert place({}, LaunchOptions(), EIGHT_GPUS).workers == (8,)
    assert place({}, LaunchOptions(cpu=True, workers=2), EIGHT_GPUS).backend == "gloo"
    with pytest.raises(ConfigurationError, match="needs an OpenPAI job"):
        place({}, LaunchOptions(roles=("worker",)), CPU_ONLY)


def test_numbered_nodes_without_openpai() -> None:
    variables = {
        "NNODES": "3",
        "NODE_RANK": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "23456",
    }
    placement = place(variables, LaunchOptions(workers=2), CPU_ONLY)
    assert (placement.task, placement.first_rank, placement.world_size) == ("node-2", 4, 6)
    assert (placement.master, placement.ports) == ("127.0.0.1", (23456,))
    del variables["MASTER_PORT"]
    with pytest.raises(EnvironmentVariableError, match="NNODES=3 needs MASTER_PORT"):
        place(variables, LaunchOptions(), CPU_ONLY)


def test_what_a_person_has_set_wins() -> None:
    variables = pai_variables({"worker": 2}, "worker", 1, ports={"SynPort": "20001"})
    variables |= {"MASTER_ADDR": "127.0.0.7", "MASTER_PORT": "777", "NCCL_SOCKET_IFNAME": "ib0"}
    placement = place(variables, LaunchOptions(), CPU_ONLY)
    assert (placement.master, placement.ports) == ("127.0.0.7", (777,))
    added = worker_variables(placement, variables)
    assert "NCCL_SOCKET_IFNAME" not in added
    assert added["GLOO_SOCKET_IFNAME"] == "lo"
    assert (added["NNODES"], added["NODE_RANK"]) == ("2", "1")


def test_a_run_id_is_the_attempts() -> None:
    def run_id(**values: str) -> str:
        variables = pai_variables({"worker": 1}, "worker", 0) | values
        return place(variables, LaunchOptions(), CPU_ONLY).run_id

    assert run_id() == run_id()
    assert run_id(FC_FRAMEWORK_ATTEMPT_INSTANCE_UID="1_x") == "1_x"
    older = run_id(FC_FRAMEWORK_ATTEMPT_INSTANCE_UID="", FC_FRAMEWORK_ATTEMPT_ID="1")
    assert older == "ada~mnist_1"


def test_ltp_is_read_like_openpai() -> None:
    """The successor adds AMD's variable, and reports no shm size although its default is 16 GiB."""
    variables = pai_variables({"worker": 1}, "worker", 0, resources={"worker": "8,88,819200,0"})
    variables |= {"NVIDIA_VISIBLE_DEVICES": "0,1", "AMD_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    placement = place(variables, LaunchOptions(), EIGHT_GPUS)
    assert (placement.workers, placement.backend) == ((8,), "nccl")


def test_cores_are_shared_between_workers() -> None:
    variables = pai_variables({"worker": 1}, "worker", 0, resources={"worker": "0,1,8192,0"})
    assert place(variables, LaunchOptions(), CPU_ONLY).threads == 1
    chosen = place(variables, LaunchOptions(threads=7), CPU_ONLY)
    assert "threads=7" in str(chosen)
    assert worker_variables(chosen, {})["OMP_NUM_THREADS"] == "7"
    assert (
        worker_variables(place({}, LaunchOptions(workers=64), CPU_ONLY), {})["OMP_NUM_THREADS"]
        == "1"
    )


def test_a_worker_of_another_launcher() -> None:
    whole = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert is_worker(whole)
    assert not is_worker({"MASTER_ADDR": "a", "MASTER_PORT": "1"})
    with pytest.raises(EnvironmentVariableError, match="MASTER_PORT not set"):
        is_worker({name: value for name, value in whole.items() if name != "MASTER_PORT"})
    with pytest.raises(EnvironmentVariableError, match="RANK='2' is not between 0 and 1"):
        is_worker(whole | {"RANK": "2"})


def test_interfaces() -> None:
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("127.0.0.2") == "lo"
    assert find_interface("192.0.2.77") is None
    assert is_local("127.0.0.2")
    assert not is_local("192.0.2.77")
    assert "lo" in interface_names()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing; finds the address used to go out
        except OSError:
            pytest.skip("this machine has no route to the outside")
        assert find_interface(probe.getsockname()[0]) in interface_names() - {"lo"}


def test_exit_codes_do_on_openpai_what_they_are_for() -> None:
    assert classify(exit_codes.RETRY, "").reaction is Reaction.UP_TO_RETRY_COUNT
    assert classify(exit_codes.NEVER_RETRY, "").reaction is Reaction.NEVER
    for code in [-9, -15, -11, 130, 131, 137, 143]:
        assert exit_codes.of_worker(code) == exit_codes.RETRY
    for code in [0, 3, 136]:
        assert exit_codes.of_worker(code) == code


def test_reading_the_environment_imports_no_torch() -> None:
    names = ("placement", "coordinator", "member", "worker_process", "script")
    modules = ", ".join(f"ggs.launch.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
