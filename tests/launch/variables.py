"""The variables that OpenPAI 1.8.1 sets in a task's container, as far as a launch reads them."""

from collections.abc import Mapping, Sequence

from ggs.launch.environment import role_key


def pai_variables(
    roles: Mapping[str, int],
    role: str,
    index: int,
    *,
    hosts: Sequence[str] = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"),
    ports: Mapping[str, str] | None = None,
    resources: Mapping[str, str] | None = None,
    attempt: str = "0_6c19c8a6",
) -> dict[str, str]:
    """Task ``index`` of ``role`` in a job of ``roles`` (name: tasks).

    ``hosts``: of all tasks, in the order of the roles. ``ports``: by label, of every role's first task;
    the other tasks get the same numbers. ``resources``: ``gpu,cpu,memoryMB,shmMB`` by role.
    """
    variables = {
        "FC_FRAMEWORK_ATTEMPT_ID": "0",
        "FC_TASK_ATTEMPT_ID": "0",
        "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID": attempt,
        "FC_TASK_INDEX": str(index),
        "FC_TASKROLE_NAME": role_key(role),
        "PAI_JOB_NAME": "ada~mnist",
        "PAI_TASK_ROLE_LIST": ",".join(roles),
        "PAI_CURRENT_TASK_ROLE_NAME": role,
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(index),
        "PAI_TASK_INDEX": str(index),
    }
    addresses = iter(hosts)
    labels = {"ssh": "15022", "http": "15080", **(ports or {})}
    for name, tasks in roles.items():
        key = role_key(name)
        variables[f"PAI_TASK_ROLE_TASK_COUNT_{name}"] = str(tasks)
        variables[f"PAI_RESOURCE_{name}"] = (resources or {}).get(name, "0,4,8192,0")
        for task in range(tasks):
            variables[f"PAI_HOST_IP_{key}_{task}"] = next(addresses)
            for label, numbers in labels.items():
                variables[f"PAI_PORT_LIST_{key}_{task}_{label}"] = numbers
                variables[f"PAI_{key}_{task}_{label}_PORT"] = numbers
    return variables
