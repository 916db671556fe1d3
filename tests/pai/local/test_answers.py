"""Every file of tests/pai/jobs beside the answers of the original programs, kept in tests/pai/answers.json.

They come from OpenPAI 1.8.1's rest-server (validation, rendering, environment; its database service's second
reading), LTP 1.5's validation, and openpai-runtime 0.1.12 (init.d/initializer.py, framework_parser.py,
user_command_renderer.py), run from their sources on these files. `init` is the exit code of the preparation
of plugins; null: it was not run. `environment` is that of the first role's task 0, or the name of a job that
has the same.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ggs.launch.pai_names import role_key
from ggs.pai.job.document import load, read_text
from ggs.pai.job.model import Job
from ggs.pai.job.stored import InitFailure, mask, read_in_container
from ggs.pai.local.runtime_scripts import task_files
from ggs.pai.local.task_environment import Attempt, Pod, TaskId, task_environment, tasks_of
from ggs.pai.validate import Target, validate

HERE = Path(__file__).parents[1]
ANSWERS: dict[str, dict[str, Any]] = json.loads((HERE / "answers.json").read_text())
STORED = [name for name, answer in ANSWERS.items() if answer["openpai"] == 202]
ROLES = [(name, role) for name in STORED for role in ANSWERS[name]["roles"]]
# The original fails on these in a later step; the model of a job refuses them at once.
NO_JOB = {"plugin-mapping", "ports-list"}


def job_file(name: str) -> Path:
    return HERE / "jobs" / f"{name}.yaml"


def test_every_job_file_has_an_answer() -> None:
    assert set(ANSWERS) == {file.stem for file in (HERE / "jobs").glob("*.yaml")}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("target", ["openpai", "ltp"])
def test_what_a_server_refuses_is_an_error(name: str, target: Target) -> None:
    errors = [
        item
        for item in validate(read_text(job_file(name)), target=target)
        if item.severity == "error"
    ]
    refused = ANSWERS[name][target] != 202 or ANSWERS[name].get("hived") == 400
    fails = any(role["init"] for role in ANSWERS[name].get("roles", {}).values())
    if refused or (fails and not (target == "ltp" and name == "plugin-dind")):
        assert errors


@pytest.mark.parametrize(("name", "role"), ROLES)
def test_a_task_gets_the_scripts_of_the_original_runtime(name: str, role: str) -> None:
    answer = ANSWERS[name]["roles"][role]
    if answer["init"] is None or name in NO_JOB:
        pytest.skip("the original was not run, or the local run refuses the job")
    if answer["init"]:
        with pytest.raises(InitFailure):
            files_of(name, role)
        return
    files = files_of(name, role)
    ssh = _has_ssh(name)
    scripts = {
        path.removeprefix("runtime.d/"): text for path, text in files.items() if "/plugin_" in path
    }
    if not ssh:  # it installs sshd, and is not run here
        assert scripts == answer.get("scripts", {})
        assert _calls(files["runtime.d/precommands.sh"]) == answer.get("before", [])
        assert _calls(files["runtime.d/postcommands.sh"]) == answer.get("after", [])
    assert files["runtime.d/user.sh"].split("pipefail\n", 1)[1] == answer["commands"] + "\n"


def files_of(name: str, role: str) -> dict[str, str]:
    document = load(job_file(name))
    job = _without_extras_that_only_hived_reads(document.value)
    stored = read_in_container(mask(document.text))
    return task_files(job, stored, TaskId(role, 0), job.render_commands(role))[0]


def _without_extras_that_only_hived_reads(value: Any) -> Job:
    extras = {key: item for key, item in value.get("extras", {}).items() if key != "hivedScheduler"}
    # What the server's schema lets through, the model of a local run may still refuse.
    storages = extras.get("storages")
    if isinstance(storages, list) and not all(isinstance(item, dict) for item in storages):
        del extras["storages"]
    return Job.model_validate({**value, "extras": extras})


def _has_ssh(name: str) -> bool:
    return "plugin: ssh" in job_file(name).read_text()


def _calls(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("/bin/bash")]


@pytest.mark.parametrize(
    "name", [name for name in STORED if "environment" in ANSWERS[name] and name not in NO_JOB]
)
def test_a_task_gets_the_environment_of_the_original(name: str) -> None:
    expected = ANSWERS[name]["environment"]
    if isinstance(expected, str):
        expected = ANSWERS[expected]["environment"]
    job = _without_extras_that_only_hived_reads(load(job_file(name)).value)
    roles = list(job.task_roles)
    pods = {
        task: Pod(f"10.0.{roles.index(task.role)}.{task.index}", f"pod-{task.role}-{task.index}")
        for task in tasks_of(job)
    }
    if len({role_key(role) for role in roles}) < len(roles):
        pytest.skip("two roles of one name: the local run refuses the job")
    environment = task_environment(
        job,
        TaskId(roles[0], 0),
        Attempt("00000000-0000-0000-0000-000000000000", 0, pods),
        user="alice",
        work_dir="/",
        runtime_dir="/usr/local/pai",
    )
    assert {key: environment.get(key) for key in expected} == expected
    more = {key for key in environment.keys() - expected.keys() if not key.startswith("FC_")}
    own = {"PAI_WORK_DIR", "RUNTIME_LOG_PIPE", "PAI_TASK_INDEX", "PAI_CURRENT_TASK_ROLE_NAME"}
    own |= {"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "NVIDIA_VISIBLE_DEVICES"}
    assert more <= own
