import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ggs.pai.job import plugins
from ggs.pai.job.document import load
from ggs.pai.job.edit import edit
from ggs.pai.job.model import Job
from ggs.pai.job.stored import read_in_container
from ggs.pai.validate import Target, validate

FILES = sorted((Path(__file__).parents[2] / "pai_jobs").glob("*.yaml"))
TRAININGS = [file for file in FILES if file.stem != "custom-script"]

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def test_there_is_a_job_for_every_model_of_the_paper() -> None:
    assert {file.stem for file in FILES} == {
        *("smoke", "custom-script", "lenet5-mnist", "cifarnet-cifar10"),
        *("densenet121-cifar10", "alexnet-imagenet"),
    }


@each_file
@pytest.mark.parametrize("target", ["openpai", "ltp", "both"])
def test_nothing_is_wrong(file: Path, target: Target) -> None:
    assert validate(file.read_text(), target=target) == []


@each_file
def test_nothing_is_wrong_after_the_portal_has_rewritten_it(file: Path) -> None:
    rewritten = yaml.safe_dump(yaml.safe_load(file.read_text()))
    assert validate(rewritten) == []
    assert Job.load(rewritten) == Job.load(file.read_text())


@each_file
def test_commands_survive_the_portals_forms(file: Path) -> None:
    for role in Job.load(file).task_roles.values():
        text = "\n".join(role.commands)
        assert [line.strip() for line in text.strip().split("\n")] == role.commands
        assert not set(text) & set("#\\'\"")


@each_file
def test_a_person_changes_the_image_the_storage_and_at_most_three_numbers(file: Path) -> None:
    parameters = Job.load(file).parameters
    texts = {name for name, value in parameters.items() if isinstance(value, str)}
    numbers = {name for name, value in parameters.items() if isinstance(value, int)}
    assert texts == ({"image"} if file.stem == "smoke" else {"image", "storage"})
    assert len(numbers) <= 3
    assert texts | numbers == set(parameters)


@each_file
def test_every_parameter_has_an_effect(file: Path) -> None:
    before = Job.load(file)
    for name, value in before.parameters.items():
        new = "other/image:2.0" if name == "image" else "other" if name == "storage" else "7"
        after = Job.load(file, {name: new})
        role, commands = after.task_roles["worker"], after.render_commands("worker")
        if name == "image":
            assert after.image("worker").uri == new
        elif name == "storage":
            assert [storage.target for storage in after.extras.storages or []] == ["/mnt/other"]
            assert "/mnt/other/" in commands
            assert str(value) not in commands
            stored = read_in_container(edit(load(file), {name: new}).text)
            (entry,) = plugins.entries(stored, "worker")
            parameters = plugins.parameters(entry, stored, None, "worker")
            assert parameters["logdir"] == {"ggs": "/mnt/other/ggs"}
        elif name == "nodes":
            assert role.instances == 7
        elif name == "gpus":
            assert role.resource.gpu == 7
        else:
            assert f"--{name} 7" in commands


@each_file
def test_a_lost_port_or_node_does_not_end_the_job(file: Path) -> None:
    job = Job.load(file)
    role = job.task_roles["worker"]
    assert job.job_retry_count >= 2
    assert (role.min_failed, role.min_succeeded) == (1, -1)
    assert role.resource.ports == {"rendezvous": 2}
    assert role.instances >= 2


def _arguments(file: Path) -> Iterator[list[str]]:
    """The entrypoint's arguments in each command, with variables as a task has them."""
    for line in Job.load(file).render_commands("worker").splitlines():
        line = line.replace("$PAI_WORK_DIR", "/opt/ggs").replace("$PAI_JOB_NAME", "ann~job")
        program, script, *arguments = shlex.split(line)
        assert (program, script) == ("python", "/opt/ggs/entrypoint.py")
        yield arguments


@pytest.mark.parametrize("file", TRAININGS, ids=lambda file: file.stem)
def test_the_trainer_knows_every_flag(file: Path) -> None:
    from ggs.train import arguments, config

    for argv in _arguments(file):
        settings = arguments.parse(config.TrainConfig, argv, "ggs", "")
        assert settings.model == file.stem.split("-")[0].replace("smoke", "lenet5")
        assert settings.epochs == Job.load(file).parameters["epochs"]
        assert settings.density == 0.001
        if file.stem != "smoke":
            assert str(settings.run_dir) == "/mnt/my-storage/ggs/ann~job"
            assert settings.checkpoint_dir == settings.run_dir / "checkpoints"
        assert settings.backend == ("gloo" if file.stem == "smoke" else "nccl")


def test_the_launcher_knows_every_flag_before_the_script(tmp_path: Path) -> None:
    from ggs.launch import script

    (tmp_path / "train.py").touch()
    file = next(file for file in FILES if file.stem == "custom-script")
    for argv in _arguments(file):
        argv = [word.replace("/mnt/my-storage", str(tmp_path)) for word in argv]
        split = script.split(argv)
        assert split is not None
        options, path, own = split
        assert options.backend == "nccl"
        assert path == str(tmp_path / "train.py")
        assert own == ("--output", f"{tmp_path}/ggs/ann~job")
