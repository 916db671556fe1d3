"""The environment of a task, variable by variable.

The addresses and port numbers in the tables are what openpai-runtime's own framework_parser.py prints
for these jobs and pod identifiers.
"""

import uuid
from collections.abc import Mapping

import pytest

from ggs.launch.environment import PAIEnvironment
from ggs.pai.job.model import Job
from ggs.pai.local.task_environment import Attempt, Pod, TaskId, task_environment, tasks_of

JOB_UID = "6f1d2c3b-0000-4000-8000-00000000abcd"

TWO_ROLES = """
protocolVersion: 2
name: table
type: job
prerequisites: [{type: dockerimage, name: image, uri: "ggs:0.1"}]
taskRoles:
  chief:
    instances: 1
    dockerImage: image
    resourcePerInstance: {cpu: 4, memoryMB: 8192, gpu: 1}
    commands: [echo]
  Worker_A:
    instances: 2
    completion: {minFailedInstances: 2, minSucceededInstances: -1}
    dockerImage: image
    extraContainerOptions: {shmMB: 2048}
    resourcePerInstance: {cpu: 2, memoryMB: 4096, gpu: 0, ports: {SynPort: 1, my_data: 3}}
    commands: [echo]
"""

ONE_ROLE = """
protocolVersion: 2
name: one
type: job
prerequisites: [{type: dockerimage, name: image, uri: "ggs:0.1"}]
defaults: {virtualCluster: research}
taskRoles:
  worker:
    instances: 2
    dockerImage: image
    resourcePerInstance: {cpu: 4, memoryMB: 8192, gpu: 4}
    commands: [echo]
"""


def pod_uid(number: int) -> str:
    return f"{number:08d}-1111-4222-8333-444455556666"


def attempt_of(job: Job, number: int = 0, first_pod: int = 0) -> Attempt:
    return Attempt(
        JOB_UID,
        number,
        {
            task: Pod(f"10.0.{place}.7", pod_uid(first_pod + place))
            for place, task in enumerate(tasks_of(job))
        },
    )


def environment(text: str, task: TaskId, number: int = 0, first_pod: int = 0) -> dict[str, str]:
    job = Job.load(text)
    return task_environment(
        job,
        task,
        attempt_of(job, number, first_pod),
        user="alice",
        work_dir="/opt/ggs",
        runtime_dir="/usr/local/pai",
    )


# What FrameworkController makes up at random: checked for its form, not its value.
RANDOM = {
    "FC_FRAMEWORK_UID",
    "FC_CONFIGMAP_UID",
    "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID",
    "FC_TASKROLE_UID",
    "FC_TASK_UID",
}

WORKER_A_1 = {
    # A: FrameworkController; md5("alice~table")
    "FC_FRAMEWORK_NAMESPACE": "default",
    "FC_FRAMEWORK_NAME": "d9150a3432dce81d87db1b762ce794c0",
    "FC_TASKROLE_NAME": "workera",
    "FC_TASK_INDEX": "1",
    "FC_CONFIGMAP_NAME": "d9150a3432dce81d87db1b762ce794c0-attempt",
    "FC_POD_NAME": "d9150a3432dce81d87db1b762ce794c0-workera-1",
    "FC_FRAMEWORK_ATTEMPT_ID": "0",
    "FC_TASK_ATTEMPT_ID": "0",
    "FC_POD_UID": "00000002-1111-4222-8333-444455556666",
    "FC_TASK_ATTEMPT_INSTANCE_UID": "0_00000002-1111-4222-8333-444455556666",
    # B: the REST server
    "PAI_FRAMEWORK_NAME": "alice~table",
    "PAI_JOB_NAME": "alice~table",
    "PAI_USER_NAME": "alice",
    "PAI_USERNAME": "alice",
    "PAI_DEFAULT_FS_URI": "",
    "PAI_VIRTUAL_CLUSTER": "default",
    "PAI_TASK_ROLE_COUNT": "2",
    "PAI_TASK_ROLES_NUM": "2",
    "PAI_JOB_TASK_ROLE_COUNT": "2",
    "PAI_TASK_ROLE_LIST": "chief,Worker_A",
    "PAI_JOB_TASK_ROLE_LIST": "chief,Worker_A",
    "PAI_TASKS_NUM": "3",
    "PAI_JOB_TASK_COUNT": "3",
    "PAI_TASK_ROLE_TASK_COUNT_chief": "1",
    "PAI_TASK_ROLE_TASK_COUNT_Worker_A": "2",
    "PAI_RESOURCE_chief": "1,4,8192,0",
    "PAI_RESOURCE_Worker_A": "0,2,4096,2048",
    "PAI_MIN_FAILED_TASK_COUNT_chief": "1",
    "PAI_MIN_FAILED_TASK_COUNT_Worker_A": "2",
    "PAI_MIN_SUCCEEDED_TASK_COUNT_chief": "1",
    "PAI_MIN_SUCCEEDED_TASK_COUNT_Worker_A": "-1",
    "PAI_CURRENT_TASK_ROLE_NAME": "Worker_A",
    "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "1",
    "PAI_TASK_INDEX": "1",
    "NVIDIA_VISIBLE_DEVICES": "none",
    # C: the runtime
    "PAI_HOST_IP_chief_0": "10.0.0.7",
    "PAI_PORT_LIST_chief_0_ssh": "21350",
    "PAI_chief_0_ssh_PORT": "21350",
    "PAI_PORT_LIST_chief_0_http": "25735",
    "PAI_chief_0_http_PORT": "25735",
    "PAI_TASK_ROLE_chief_HOST_LIST": "10.0.0.7:25735",
    "PAI_HOST_IP_workera_0": "10.0.1.7",
    "PAI_PORT_LIST_workera_0_SynPort": "17854",
    "PAI_workera_0_SynPort_PORT": "17854",
    "PAI_PORT_LIST_workera_0_my_data": "24075,15417,15697",
    "PAI_workera_0_my_data_PORT": "24075,15417,15697",
    "PAI_PORT_LIST_workera_0_ssh": "26329",
    "PAI_workera_0_ssh_PORT": "26329",
    "PAI_PORT_LIST_workera_0_http": "23443",
    "PAI_workera_0_http_PORT": "23443",
    "PAI_HOST_IP_workera_1": "10.0.2.7",
    "PAI_PORT_LIST_workera_1_SynPort": "30307",
    "PAI_workera_1_SynPort_PORT": "30307",
    "PAI_PORT_LIST_workera_1_my_data": "21381,24772,27223",
    "PAI_workera_1_my_data_PORT": "21381,24772,27223",
    "PAI_PORT_LIST_workera_1_ssh": "28315",
    "PAI_workera_1_ssh_PORT": "28315",
    "PAI_PORT_LIST_workera_1_http": "21041",
    "PAI_workera_1_http_PORT": "21041",
    "PAI_TASK_ROLE_workera_HOST_LIST": "10.0.1.7:23443,10.0.2.7:21041",
    "PAI_TASK_ROLE_INSTANCES": "chief:0,workera:0,workera:1",
    "PAI_CURRENT_CONTAINER_IP": "10.0.2.7",
    "PAI_CONTAINER_HOST_IP": "10.0.2.7",
    "PAI_CURRENT_CONTAINER_PORT": "21041",
    "PAI_CONTAINER_HOST_PORT": "21041",
    "PAI_CONTAINER_SSH_PORT": "28315",
    "PAI_CONTAINER_HOST_SynPort_PORT_LIST": "30307",
    "PAI_CONTAINER_HOST_my_data_PORT_LIST": "21381,24772,27223",
    "PAI_CONTAINER_HOST_ssh_PORT_LIST": "28315",
    "PAI_CONTAINER_HOST_http_PORT_LIST": "21041",
    "PAI_CONTAINER_HOST_PORT_LIST": (
        "SynPort:30307;my_data:21381,24772,27223;ssh:28315;http:21041;"
    ),
    "PAI_WORK_DIR": "/opt/ggs",
    "RUNTIME_LOG_PIPE": "/usr/local/pai/runtime.d/runtime_log_pipe",
}

WORKER_0 = {
    # md5("alice~one")
    "FC_FRAMEWORK_NAMESPACE": "default",
    "FC_FRAMEWORK_NAME": "8c79aebfea568d1f07cb41dcad0b46aa",
    "FC_TASKROLE_NAME": "worker",
    "FC_TASK_INDEX": "0",
    "FC_CONFIGMAP_NAME": "8c79aebfea568d1f07cb41dcad0b46aa-attempt",
    "FC_POD_NAME": "8c79aebfea568d1f07cb41dcad0b46aa-worker-0",
    "FC_FRAMEWORK_ATTEMPT_ID": "0",
    "FC_TASK_ATTEMPT_ID": "0",
    "FC_POD_UID": "00000000-1111-4222-8333-444455556666",
    "FC_TASK_ATTEMPT_INSTANCE_UID": "0_00000000-1111-4222-8333-444455556666",
    "PAI_FRAMEWORK_NAME": "alice~one",
    "PAI_JOB_NAME": "alice~one",
    "PAI_USER_NAME": "alice",
    "PAI_USERNAME": "alice",
    "PAI_DEFAULT_FS_URI": "",
    "PAI_VIRTUAL_CLUSTER": "research",
    "PAI_TASK_ROLE_COUNT": "1",
    "PAI_TASK_ROLES_NUM": "1",
    "PAI_JOB_TASK_ROLE_COUNT": "1",
    "PAI_TASK_ROLE_LIST": "worker",
    "PAI_JOB_TASK_ROLE_LIST": "worker",
    "PAI_TASKS_NUM": "2",
    "PAI_JOB_TASK_COUNT": "2",
    "PAI_TASK_ROLE_TASK_COUNT_worker": "2",
    "PAI_RESOURCE_worker": "4,4,8192,0",
    "PAI_MIN_FAILED_TASK_COUNT_worker": "1",
    "PAI_MIN_SUCCEEDED_TASK_COUNT_worker": "2",
    "PAI_CURRENT_TASK_ROLE_NAME": "worker",
    "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "0",
    "PAI_TASK_INDEX": "0",
    "PAI_HOST_IP_worker_0": "10.0.0.7",
    "PAI_PORT_LIST_worker_0_ssh": "21350",
    "PAI_worker_0_ssh_PORT": "21350",
    "PAI_PORT_LIST_worker_0_http": "25735",
    "PAI_worker_0_http_PORT": "25735",
    "PAI_HOST_IP_worker_1": "10.0.1.7",
    "PAI_PORT_LIST_worker_1_ssh": "26329",
    "PAI_worker_1_ssh_PORT": "26329",
    "PAI_PORT_LIST_worker_1_http": "23443",
    "PAI_worker_1_http_PORT": "23443",
    "PAI_TASK_ROLE_worker_HOST_LIST": "10.0.0.7:25735,10.0.1.7:23443",
    "PAI_TASK_ROLE_INSTANCES": "worker:0,worker:1",
    "PAI_CURRENT_CONTAINER_IP": "10.0.0.7",
    "PAI_CONTAINER_HOST_IP": "10.0.0.7",
    "PAI_CURRENT_CONTAINER_PORT": "25735",
    "PAI_CONTAINER_HOST_PORT": "25735",
    "PAI_CONTAINER_SSH_PORT": "21350",
    "PAI_CONTAINER_HOST_ssh_PORT_LIST": "21350",
    "PAI_CONTAINER_HOST_http_PORT_LIST": "25735",
    "PAI_CONTAINER_HOST_PORT_LIST": "ssh:21350;http:25735;",
    "PAI_WORK_DIR": "/opt/ggs",
    "RUNTIME_LOG_PIPE": "/usr/local/pai/runtime.d/runtime_log_pipe",
}


@pytest.mark.parametrize(
    ("text", "task", "expected"),
    [(TWO_ROLES, TaskId("Worker_A", 1), WORKER_A_1), (ONE_ROLE, TaskId("worker", 0), WORKER_0)],
    ids=["two roles, several ports", "one role, no ports"],
)
def test_the_whole_environment(text: str, task: TaskId, expected: Mapping[str, str]) -> None:
    found = environment(text, task)
    assert {name: value for name, value in found.items() if name not in RANDOM} == expected
    assert found.keys() > RANDOM


def test_identifiers_have_openpais_form_and_scope() -> None:
    tasks = tasks_of(Job.load(TWO_ROLES))
    first = [environment(TWO_ROLES, task) for task in tasks]
    second = environment(TWO_ROLES, tasks[0], number=1, first_pod=3)
    for name in RANDOM - {"FC_FRAMEWORK_ATTEMPT_INSTANCE_UID"}:
        assert str(uuid.UUID(first[0][name])) == first[0][name]
    # Of the job, for all attempts.
    assert {found["FC_FRAMEWORK_UID"] for found in [*first, second]} == {JOB_UID}
    # Of one attempt, the same on all its tasks: a rendezvous may be named after it.
    rendezvous = {found["FC_FRAMEWORK_ATTEMPT_INSTANCE_UID"] for found in first}
    assert rendezvous == {f"0_{first[0]['FC_CONFIGMAP_UID']}"}
    # Of a role, and of a task.
    assert first[1]["FC_TASKROLE_UID"] == first[2]["FC_TASKROLE_UID"]
    assert first[0]["FC_TASKROLE_UID"] != first[1]["FC_TASKROLE_UID"]
    assert len({found["FC_TASK_UID"] for found in first}) == 3


def test_a_retry_renews_ports_and_identifiers_and_nothing_else() -> None:
    before = environment(TWO_ROLES, TaskId("Worker_A", 1))
    after = environment(TWO_ROLES, TaskId("Worker_A", 1), number=1, first_pod=3)
    changed = {name for name in before if before[name] != after[name]}
    renewed = {name for name in before if "_PORT" in name or name.endswith("_HOST_LIST")}
    renewed |= RANDOM - {"FC_FRAMEWORK_UID"}
    renewed |= {"FC_FRAMEWORK_ATTEMPT_ID", "FC_POD_UID", "FC_TASK_ATTEMPT_INSTANCE_UID"}
    assert changed == renewed
    assert after["FC_FRAMEWORK_ATTEMPT_ID"] == "1"
    assert after["FC_TASK_ATTEMPT_ID"] == "0"  # always 0 with gang allocation


def test_ports_lie_in_openpais_range() -> None:
    job = Job.load(TWO_ROLES.replace("my_data: 3", "my_data: 400"))
    found = task_environment(
        job,
        TaskId("chief", 0),
        attempt_of(job),
        user="alice",
        work_dir="/",
        runtime_dir="/usr/local/pai",
    )
    ports = [int(port) for port in found["PAI_PORT_LIST_workera_0_my_data"].split(",")]
    assert len(ports) == 400
    assert all(15000 <= port < 40000 for port in ports)
    assert max(ports) - min(ports) > 20000


def test_a_declared_automatic_label_keeps_its_count() -> None:
    found = environment(TWO_ROLES.replace("SynPort: 1", "http: 2"), TaskId("Worker_A", 0))
    ports = found["PAI_PORT_LIST_workera_0_http"].split(",")
    assert len(ports) == 2
    assert found["PAI_CURRENT_CONTAINER_PORT"] == ports[0]


def test_a_gpu_task_is_not_told_that_it_has_none() -> None:
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(ONE_ROLE, TaskId("worker", 0))


def test_the_entrypoint_reads_what_it_is_given() -> None:
    found = PAIEnvironment.from_mapping(environment(TWO_ROLES, TaskId("Worker_A", 1)))
    assert found is not None
    assert (found.role.name, found.index) == ("Worker_A", 1)
    assert found.address(found.role, 0) == "10.0.1.7"
    assert found.ports(found.role, 1)["my_data"] == (21381, 24772, 27223)
    assert found.rendezvous_ports(found.roles[1], 0)[0] == 17854
