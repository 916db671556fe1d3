from pathlib import Path

import pytest

from ggs.errors import ConfigurationError
from ggs.pai.job.document import DocumentError, parse
from ggs.pai.job.edit import edit
from ggs.pai.job.model import Job

TEXT = """\
# a comment
protocolVersion: 2
name: three-nodes
type: job
parameters:
  image: &image registry.example.com/me/ggs:0.1.0 # kept
  nodes: &nodes 3
  rate: 0.1
  tag: "1.10"
  flag: true
  empty:
  deep: {list: [a, b]}
prerequisites:
  - {type: dockerimage, name: image, uri: *image}
  - {type: data, name: mnist, uri: ["http://host/a", "http://host/b"]}
  - type: script
    name: prepare
    plugin: com.microsoft.pai.runtimeplugin.cmd
    callbacks: [{event: taskStarts, commands: ["echo <% $parameters.tag %>"]}]
taskRoles:
  worker:
    instances: *nodes
    dockerImage: image
    data: mnist
    prerequisites: [prepare]
    resourcePerInstance: {cpu: 2, memoryMB: 2048, gpu: 0, ports: {sync: 2}}
    extraContainerOptions: {shmMB: 512}
    commands:
      - "  train --nodes <% $parameters.nodes %> --rate <%$parameters.rate%>  "
      - echo <% $parameters.deep.list[1] %> <% $data.uri[0] %> <% $parameters.unknown %>
deployments:
  - name: prod
    taskRoles: {worker: {preCommands: ["first "], postCommands: [last]}}
defaults: {deployment: prod}
extras:
  storages: [{name: data}, {name: other, mountPath: /data}]
  com.microsoft.pai.runtimeplugin:
    - {plugin: ssh, parameters: {jobssh: false}, failurePolicy: ignore}
    - {plugin: cmd, parameters: {preCommands: [x]}, taskroles: [elsewhere]}
"""


def test_a_job_has_typed_fields() -> None:
    job = Job.load(TEXT)
    worker = job.task_roles["worker"]
    assert (worker.instances, worker.min_failed, worker.min_succeeded) == (3, 1, 3)
    assert (worker.resource.cpu, worker.resource.memory_mb, worker.resource.gpu) == (2, 2048, 0)
    assert worker.resource.ports == {"sync": 2}
    assert worker.extra_container_options.shm_mb == 512
    assert job.image("worker").uri == "registry.example.com/me/ggs:0.1.0"
    assert [storage.target for storage in job.extras.storages or []] == ["/mnt/data", "/data"]


def test_commands_are_trimmed_joined_and_rendered_as_the_server_does() -> None:
    assert Job.load(TEXT).render_commands("worker") == (
        "first\ntrain --nodes 3 --rate 0.1\necho b http://host/a <% $parameters.unknown %>\nlast"
    )


def test_secrets_are_escaped_and_erase_unknown_references() -> None:
    text = TEXT + "secrets: {key: 'p&w<\"x'}\n"
    text = text.replace('preCommands: ["first "]', 'preCommands: ["login <% $secrets.key %>"]')
    lines = Job.load(text).render_commands("worker").splitlines()
    assert lines[0] == "login p&amp;w&lt;&quot;x"
    assert lines[2] == "echo b http://host/a "


def test_overrides_reach_every_alias() -> None:
    job = Job.load(TEXT, {"nodes": "5", "image": "host:5000/a/b:1.0"})
    assert job.task_roles["worker"].instances == 5
    assert job.image("worker").uri == "host:5000/a/b:1.0"
    assert job.render_commands("worker").splitlines()[1].startswith("train --nodes 5 ")


def test_an_edit_changes_nothing_else() -> None:
    assert edit(parse(TEXT), {"image": "a:1"}).text == TEXT.replace(
        "&image registry.example.com/me/ggs:0.1.0 # kept", "&image a:1 # kept"
    )


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("tag", "1.20", "1.20"),
        ("tag", "no", "no"),
        ("tag", "a: b # c", "a: b # c"),
        ("tag", "", ""),
        ("tag", "x\ny", "x\ny"),
        ("nodes", "4", 4),
        ("nodes", "1e2", 100),
        ("rate", "2", 2),
        ("flag", "false", False),
        ("empty", "7", 7),
        ("empty", "text", "text"),
    ],
)
def test_a_parameter_keeps_its_type(name: str, value: str, read: object) -> None:
    parameters = edit(parse(TEXT), {name: value}).get("parameters")
    assert isinstance(parameters, dict)
    assert parameters[name] == read
    assert type(parameters[name]) is type(read)
    assert parameters["deep"] == {"list": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("node", "4", "no parameter 'node': did you mean nodes"),
        ("zzz", "4", "it has image, nodes"),
        ("nodes", "four", "nodes is a number: 'four' is not one"),
        ("nodes", "true", "nodes is a number"),
        ("nodes", "[1]", "nodes is a number"),
        ("nodes", "1\nevil: 2", "nodes is a number"),
        ("flag", "yes", "flag is a truth value"),
        ("deep", "x", "deep is a mapping"),
    ],
)
def test_a_wrong_override_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        edit(parse(TEXT), {name: value})


@pytest.mark.parametrize(
    "text",
    [
        "b: &b {epochs: 1}\nname: one\nparameters: {<<: *b}\n",
        "name: one\n<<: {parameters: {epochs: 3}}\n",
        "name: one\nparameters: !!set {epochs}\n",
    ],
)
def test_what_stands_elsewhere_is_changed_by_hand(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"parameters.epochs.*: change it in the file"):
        edit(parse(text), {"epochs": "5"})


def test_several_changes_at_once() -> None:
    changed = edit(parse(TEXT), {"rate": "0.25", "empty": "x: y", "nodes": "4"}, "other")
    assert changed.text == (
        TEXT.replace("rate: 0.1", "rate: 0.25")
        .replace("empty:\n", 'empty: "x: y"\n')
        .replace("&nodes 3", "&nodes 4")
        .replace("name: three-nodes", "name: other")
    )
    assert changed.get("taskRoles", "worker", "instances") == 4
    assert edit(changed, {}) is changed


def test_block_scalars_and_aliases_can_be_set() -> None:
    text = "x: &a one\nparameters:\n  long: |\n    two\n    lines\n  same: *a\n  last: z\n"
    changed = edit(parse(text), {"long": "1", "same": "q"})
    assert changed.value == {
        "x": "one",
        "parameters": {"long": "1", "same": "q", "last": "z"},
    }


def test_rename_changes_the_name_alone() -> None:
    assert edit(parse(TEXT), {}, "other").text == TEXT.replace("name: three-nodes", "name: other")
    assert edit(parse(TEXT), {}, "2024").get("name") == "2024"
    with pytest.raises(ConfigurationError, match="'a b' is not allowed"):
        edit(parse(TEXT), {}, "a b")


def test_the_first_refusal_is_one_line_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(TEXT.replace("type: job", "type: jobs"))
    with pytest.raises(ConfigurationError) as caught:
        Job.load(file)
    assert str(caught.value).startswith(f"{file}:4: type: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # What js-yaml 3.15 returned for the same text.
        ("012", 10), ("0o14", "0o14"), ("1:30", 90), ("1_000", 1000), ("0x1F", 31),
        ("0b11", 3), ("yes", "yes"), ("on", "on"), ("~", None), ("", None), ("1e3", 1000),
        ("1.0", 1), (".5", 0.5), ("+12", 12), ("1:30:00.5", 5400.5), ("089", "089"),
        ("TRUE", True), ("1.", 1), ("-0", 0), ("_1", "_1"), ("y", "y"), ("=", "="),
        ("685_230.15", 685230.15),
    ],
)  # fmt: skip
def test_scalars_are_those_of_the_servers_reader(text: str, value: object) -> None:
    read = parse(f"a: {text}").get("a")
    assert read == value
    assert type(read) is type(value)


def test_merge_keys_and_lines() -> None:
    document = parse("base: &base {a: 1, b: 2}\nx:\n  <<: *base\n  b: 3\n  list:\n    - 4\n")
    assert document.get("x") == {"a": 1, "b": 3, "list": [4]}
    assert document.line(("x", "b")) == 4
    assert document.line(("x", "list", 0)) == 6
    assert document.line(("x", "missing", "deeper")) == 2


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a: [" * 200 + "]" * 200, "yaml-too-complex"),
        ("[" * 5000, "yaml-too-complex"),
        ("x" * 200_000, "file-too-large"),
        ("a: !!python/object/apply:os.system [true]", "yaml-tag"),
        ("a: 1\n---\nb: 2", "yaml-documents"),
        ("a: *nothing", "yaml-syntax"),
        ("a: \x07", "yaml-syntax"),
        ("a: 9999-99-99", "yaml-syntax"),
        ("a: [1,2", "yaml-syntax"),
    ],
)  # fmt: skip
def test_hostile_text_is_refused(text: str, rule: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(text)
    assert caught.value.rule == rule
