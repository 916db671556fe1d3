"""The init container's preparation of plugins; the texts are what OpenPAI's runtime 0.1.12 writes."""

from typing import Any

import pytest
import yaml

from ggs.pai.job import plugins
from ggs.pai.job.plugin_scripts import PluginScripts, prepare
from ggs.pai.job.plugins import ReferenceFailure, TextFailure
from ggs.pai.job.stored import InitFailure, read_in_container

PREFIX = "com.microsoft.pai.runtimeplugin"


def prepared(entry: dict[str, Any], first_task: bool = True, **top: Any) -> PluginScripts:
    """What comes of one plugin in a job whose role is `worker`."""
    job = {
        "parameters": {"word": "it's", "plain": "words", "number": 3},
        "taskRoles": {"worker": {"data": "sets"}},
        "prerequisites": [{"type": "data", "name": "sets", "uri": ["http://host/a"]}],
        "extras": {PREFIX: [entry]},
        **top,
    }
    stored = read_in_container(yaml.safe_dump(job, sort_keys=False))
    (found,) = plugins.entries(stored, "worker")
    return prepare(found, stored, {"key": "p&w"}, "worker", first_task=first_task)


def cmd(*commands: object, **top: Any) -> str:
    return prepared({"plugin": "cmd", "parameters": {"preCommands": list(commands)}}, **top).before


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("echo one\necho two", r"echo one\necho two"),
        ("a\tb", r"a\tb"),
        (r"grep \.txt", r"grep \\.txt"),
        (r"grep '\.txt'", r"grep '\.txt'"),
        ("echo it's", "echo it's"),
        ("echo é", "echo é"),
        ("echo <% $parameters.plain %> <%$data.uri[0]%> <% $secrets.key %>",
         "echo words http://host/a p&w"),
        ("echo <% plain %>", "echo <% plain %>"),
    ],
)  # fmt: skip
def test_a_commands_way_through_pythons_notation(command: str, line: str) -> None:
    assert cmd(command) == f"set -o errexit\n{line}\n"


@pytest.mark.parametrize("command", ["echo 'a' \"b\"", "echo <% $parameters.word %>"])
def test_quotes_that_end_the_text_too_early(command: str) -> None:
    with pytest.raises(TextFailure, match="are not YAML"):
        cmd(command)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("$parameters.none", "KeyError: 'none'"),
        ("$parameters.number", "is not text"),
        ("$parameters", "is not text"),
        ("$other.x", "names nothing"),
        ("$script.uri", "KeyError: 'script'"),
    ],
)
def test_a_reference_that_cannot_be_replaced(reference: str, message: str) -> None:
    with pytest.raises(ReferenceFailure, match=message):
        cmd(f"echo <% {reference} %>")


def test_a_failure_is_ignored_up_to_where_it_happens() -> None:
    callbacks = [
        {"event": "taskStarts", "commands": ["a"]},
        {"event": "taskSucceeds", "commands": [1]},
    ]
    entry = {"plugin": "cmd", "parameters": {"callbacks": callbacks}}
    with pytest.raises(InitFailure, match="the command 1 is not text"):
        prepared(entry)
    scripts = prepared({**entry, "failurePolicy": "ignore"})
    assert scripts.before == "set +o errexit\na\nset -o errexit\n"
    assert scripts.after == ""
    assert "the command 1 is not text" in scripts.failure


def test_text_in_the_place_of_a_list_runs_letter_by_letter() -> None:
    entry = {"plugin": "cmd", "parameters": {"postCommands": "ls"}}
    assert prepared(entry).after == "set -o errexit\nl\ns\n"


def test_git_moves_what_was_cloned() -> None:
    entry = {"plugin": "git", "parameters": {"repo_uri": "http://host/a.git", "clone_dir": "/code"}}
    assert prepared(entry).before.splitlines()[1:] == [
        "/usr/local/pai/plugins/git/check_clone_dir.sh /code",
        "mkdir -p /code",
        "mv -f /usr/local/pai/plugins/git/../../code/* /code",
    ]
    with pytest.raises(InitFailure, match="repo_uri is missing"):
        prepared({"plugin": "git"})


def test_tensorboard_runs_in_the_first_task_alone() -> None:
    entry = {"plugin": "tensorboard", "parameters": {"port": 6001, "logdir": {"a": "/x"}}}
    assert prepared(entry, first_task=False).before == ""
    script = "/usr/local/pai/plugins/tensorboard/tensorboard.sh"
    scripts = prepared(entry)
    assert scripts.before == f"set -o errexit\nchmod u+x {script}\n{script}\n"
    assert scripts.files
    assert "tensorboard --logdir=/x --port=6001 --bind_all" in scripts.files[script]
    assert prepared({"plugin": "tensorboard"}).before == ""
    with pytest.raises(InitFailure, match="logdir"):
        prepared({"plugin": "tensorboard", "parameters": {"port": 6001}})


def test_an_unknown_plugin_fails_whatever_its_policy() -> None:
    with pytest.raises(InitFailure, match="no plugin 'dind'"):
        prepared({"plugin": "dind", "failurePolicy": "ignore"})


@pytest.mark.parametrize(
    "stored", [None, [], {"taskRoles": {True: {}}}, {"taskRoles": {"worker": None}}]
)
def test_a_role_that_the_container_does_not_find(stored: object) -> None:
    with pytest.raises(InitFailure):
        plugins.entries(stored, "worker")


def test_plugins_of_prerequisites_come_first() -> None:
    prerequisites = [
        {
            "type": "script",
            "name": "prepare",
            "plugin": f"{PREFIX}.cmd",
            "failurePolicy": "ignore",
            "callbacks": [],
        }
    ]
    stored = {
        "taskRoles": {"worker": {"prerequisites": ["prepare"]}},
        "prerequisites": prerequisites,
        "extras": {PREFIX: [{"plugin": "ssh"}, {"plugin": "cmd", "taskroles": ["other"]}]},
    }
    first, second = plugins.entries(stored, "worker")
    assert first.path == ("prerequisites", 0)
    assert first.config == {
        "plugin": "cmd",
        "failurePolicy": "ignore",
        "parameters": {"name": "prepare", "callbacks": []},
    }
    assert (second.path, second.config) == (("extras", PREFIX, 0), {"plugin": "ssh"})
