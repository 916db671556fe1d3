"""What the init container of each task makes of the stored file: its YAML, and the plugins in it."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.launch.pai_names import role_key
from ggs.pai.job import plugins
from ggs.pai.job.document import Path
from ggs.pai.job.plugin_scripts import PluginScripts, prepare
from ggs.pai.job.plugins import PluginEntry
from ggs.pai.job.stored import InitFailure, in_container
from ggs.pai.validate.finding import JobView, Violation, rule

INIT_FAILS = "the init container fails on every attempt, until jobRetryCount is used up"
_ACCEPTED = f"the server answers 202 and stores the job; then {INIT_FAILS}"

_ONE_QUOTE = (
    "use one kind of quotes in each command and no apostrophe in what is inserted, or put the "
    "commands into a script of the image"
)

# What each plugin reads of its parameters; text elsewhere may change as it likes.
_READ = {
    "cmd": ("preCommands", "postCommands", "callbacks"),
    "git": ("repo_uri", "options", "clone_dir"),
    "ssh": ("jobssh", "sshbarrier", "sshbarrierTimeout", "userssh"),
    "tensorboard": ("port", "logdir"),
}


@rule(
    "init-yaml",
    "error",
    consequence=_ACCEPTED,
    fix="write YAML that every reader takes: blanks for tabs, text with special characters between "
    "double quotes, each anchor once",
)
def init_yaml(view: JobView) -> Iterator[Violation]:
    """The init container reads the stored file with PyYAML. The server's reader takes tabs between
    values, an anchor that appears twice, U+2028 and U+0085 as mere characters, control characters in
    comments, = and dates that do not exist; PyYAML refuses them."""
    damage = view.masking_damage
    refused = damage is not None and damage.kind == "syntax"
    if refused or not isinstance(view.document.value, dict) or _has_structured_key(view):
        return
    failure = view.in_container
    if isinstance(failure, InitFailure):
        yield Violation((), str(failure), line=failure.line or 1)


def _has_structured_key(view: JobView) -> bool:
    return any(note.rule == "yaml-key" for note in view.document.notes)


def _entries(view: JobView) -> Iterator[tuple[str, PluginEntry]]:
    """Role and entry of each plugin that would run, where the container gets as far as that."""
    for role in view.roles:
        try:
            yield from (
                (role, entry) for entry in plugins.entries(view.in_container, role_key(role))
            )
        except InitFailure:
            continue


@rule(
    "plugin-init",
    "error",
    consequence=_ACCEPTED,
    fix="correct the parameter that the message names",
)
def plugin_init(view: JobView) -> Iterator[Violation]:
    """The init container writes a plugin's parameters as Python does, replaces references in that
    text, reads it as YAML, and hands it to the plugin's own script. Both kinds of quotes in one text, or an
    apostrophe in a value that is inserted, break the YAML; git without repo_uri, cmd with callbacks beside
    preCommands, and a command that is not text fail in the script."""
    yield from _before_any_plugin(view)
    for entry, outcome in _prepared(view):
        if isinstance(outcome, plugins.TextFailure):
            yield Violation(entry.path, str(outcome), _ONE_QUOTE)
        elif isinstance(outcome, InitFailure) and not isinstance(outcome, plugins.ReferenceFailure):
            yield Violation(entry.path, str(outcome))  # of references the template rules speak


def _before_any_plugin(view: JobView) -> Iterator[Violation]:
    """Roles whose list of plugins cannot be made, though the server takes the file and finds the role."""
    stored = view.in_container
    known = stored.get("taskRoles") if isinstance(stored, dict) else None
    if view.refusals or not isinstance(known, dict):
        return
    named = [item.get("name") for _, item in view.prerequisites]
    for role in view.roles:
        listed = view.sequence("taskRoles", role, "prerequisites")
        try:
            plugins.entries(stored, role_key(role))
        except InitFailure as failure:
            if role_key(role) in known and all(name in named for name in listed):
                yield Violation(("taskRoles", role), str(failure))


@rule(
    "plugin-skipped",
    "warning",
    consequence="failurePolicy: ignore lets the task start without what the plugin was to do",
    fix="correct the plugin, or remove it",
)
def plugin_skipped(view: JobView) -> Iterator[Violation]:
    """As plugin-init, where failurePolicy is ignore and the failure is one of the plugin's own script."""
    for entry, outcome in _prepared(view):
        if isinstance(outcome, PluginScripts) and outcome.failure:
            yield Violation(entry.path, outcome.failure)


def _prepared(view: JobView) -> Iterator[tuple[PluginEntry, PluginScripts | InitFailure]]:
    """Each plugin of each role, and what comes of it."""
    secrets = in_container(view.secrets) if view.secrets else None
    first = next(iter(view.roles), None)
    for role, entry in _entries(view):
        if entry.config.get("plugin") not in plugins.PLUGINS:
            continue  # plugin-unknown
        first_task = role == first
        try:
            yield (
                entry,
                prepare(entry, view.in_container, secrets, role_key(role), first_task=first_task),
            )
        except InitFailure as failure:
            yield entry, failure


@rule(
    "plugin-commands",
    "error",
    consequence="the plugin runs each letter as a command of its own",
    fix="write a list: a line with - for each command",
)
def plugin_commands(view: JobView) -> Iterator[Violation]:
    """The plugin cmd goes through its commands one by one; text has letters."""
    for _, entry in _entries(view):
        values = entry.config.get("parameters")
        if entry.config.get("plugin") != "cmd" or not isinstance(values, dict):
            continue
        callbacks = values.get("callbacks")
        places: list[tuple[Path, dict[str, object]]] = [
            (("preCommands",), values),
            (("postCommands",), values),
        ]
        for number, callback in enumerate(callbacks if isinstance(callbacks, list) else []):
            if isinstance(callback, dict):
                places.append((("callbacks", number, "commands"), callback))
        for place, holder in places:
            if isinstance(holder.get(str(place[-1])), str):
                yield Violation((*_parameters(entry), *place), f"{place[-1]} is text")


@rule(
    "plugin-changed",
    "error",
    consequence="the plugin gets another text than the file has",
    fix="write one line an entry, without backslashes beside apostrophes; put longer scripts into the image",
)
def plugin_changed(view: JobView) -> Iterator[Violation]:
    """On the way through Python's notation a line break becomes the two characters \\n, a tab \\t, and a
    backslash doubles unless the text has an apostrophe; null becomes the text None."""
    secrets = in_container(view.secrets) if view.secrets else None
    for role, entry in _entries(view):
        written = entry.config.get("parameters")
        keys = _READ.get(str(entry.config.get("plugin")), ())
        if not isinstance(written, dict):
            continue
        try:
            got = plugins.parameters(entry, view.in_container, secrets, role_key(role))
        except InitFailure:
            continue
        for key in keys:
            if key in written and isinstance(got, dict):
                yield from _differences(written[key], got.get(key), (*_parameters(entry), key))


def _differences(written: object, got: object, path: Path) -> Iterator[Violation]:
    if isinstance(written, dict) and isinstance(got, dict):
        for key, item in written.items():
            yield from _differences(item, got.get(key), (*path, str(key)))
    elif isinstance(written, list) and isinstance(got, list) and len(written) == len(got):
        for number, (item, result) in enumerate(zip(written, got, strict=True)):
            yield from _differences(item, result, (*path, number))
    elif isinstance(written, str) and "<%" in written:
        if isinstance(got, str) and ("\\n" in got) > ("\\n" in written):
            yield Violation(path, f"the plugin gets {got!r}")
    elif written != got and not (written != written and got != got):
        yield Violation(path, f"the plugin gets {got if isinstance(got, str) else repr(got)}")


def _parameters(entry: PluginEntry) -> Path:
    return (*entry.path, "parameters") if entry.path[0] == "extras" else entry.path
