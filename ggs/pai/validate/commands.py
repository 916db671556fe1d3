"""Commands: what the portal, bash's options and the exit-code table make of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.validate import shell
from ggs.pai.validate.finding import JobView, Violation, rule

_FIXED_PORT = re.compile(
    r"MASTER_PORT=[\"']?\d+|--master[-_]port[= ]\d+|rdzv[-_]endpoint[= ]\S{0,200}:\d+"
    r"|\btcp://\S{1,200}:\d+|(?<![\w.])(?:23456|6002|29500|6006|12355)(?![\w.])"
)
_ENDLESS_EXIT = re.compile(r"\bexit\s+(130|131|137|143)\b")
_KILLING_TIMEOUT = re.compile(
    r"\btimeout\s+(?:\S+\s+){0,6}?(?:-s\s*(?:9|KILL|SIGKILL)|--signal[= ]\S*KILL)"
)
_SSH = re.compile(r"(?:^|[\s;&|])(mpirun|horovodrun|deepspeed|pdsh)\s")
_WAIT = re.compile(r"(?:^|[\s;&])wait(?:\s|;|$)")
_BACKGROUND = re.compile(r"(?<![&>|])&(?![&>|])")


def _commands(view: JobView) -> Iterator[tuple[str, Path, str]]:
    """Role, path and text of every command that runs."""
    for role in view.roles:
        for path, text in view.commands(role):
            yield role, path, text


@rule(
    "command-lines",
    "warning",
    consequence="the portal's form trims every line: here-documents and indented Python break",
    fix="write one simple command an entry; put scripts into the image or a storage",
)
def several_lines(view: JobView) -> Iterator[Violation]:
    """The portal splits commands into lines and trims each, when its form is used."""
    for _, path, text in _commands(view):
        lines = text.strip().splitlines()
        if len(lines) > 1:
            yield Violation(path, f"the command has {len(lines)} lines")


@rule(
    "command-comment",
    "warning",
    target="ltp",
    consequence="LTP's portal joins lines: the comment swallows the commands after it",
    fix="put the comment into the YAML, outside the text",
)
def comment(view: JobView) -> Iterator[Violation]:
    """The command box of LTP's portal knows no # comments."""
    for _, path, text in _commands(view):
        if shell.scan(text).comment:
            yield Violation(path, "the command has a comment")


@rule(
    "command-continuation",
    "warning",
    target="ltp",
    consequence="LTP's portal cuts the command there",
    fix="write the command on one line; YAML's > joins lines",
)
def continuation(view: JobView) -> Iterator[Violation]:
    """The command box of LTP's portal knows no backslash at the end of a line."""
    for _, path, text in _commands(view):
        if re.search(r"\\\s*(\n|$)", text):
            yield Violation(path, "the command continues after a backslash")


@rule(
    "command-background",
    "warning",
    consequence="on OpenPAI the task stays RUNNING until the process ends, on LTP it is killed "
    "with the task; its failure is not noticed on either",
    fix="run it in the foreground, or end it and `wait` for it before the last command ends",
)
def background(view: JobView) -> Iterator[Violation]:
    """OpenPAI's runtime waits until nobody holds its output pipe; LTP's ends with the script."""
    for role in view.roles:
        waited = False
        for path, text in reversed(view.commands(role)):
            text = shell.unquoted(text)
            waited = waited or bool(_WAIT.search(text))
            if not waited and _BACKGROUND.search(text):
                yield Violation(path, "a process is left in the background")


@rule(
    "command-fixed-port",
    "warning",
    consequence="tasks of other jobs on the same node use the same port: address already in use",
    fix="declare a port label under resourcePerInstance.ports and use "
    "$PAI_PORT_LIST_<role>_0_<label>",
)
def fixed_port(view: JobView) -> Iterator[Violation]:
    """Tasks share the network of their node, and two jobs that chose one port collide."""
    for _, path, text in _commands(view):
        match = _FIXED_PORT.search(text)
        if match:
            yield Violation(path, f"a fixed port: {match[0]}")


@rule(
    "command-endless-exit",
    "warning",
    consequence="retried for ever, not counted by jobRetryCount",
    fix="use 1 for worth a retry, 132 for never again",
)
def endless_exit(view: JobView) -> Iterator[Violation]:
    """Exit codes 130, 131, 137 and 143 count as the cluster's own doing."""
    for _, path, text in _commands(view):
        match = _ENDLESS_EXIT.search(shell.unquoted(text))
        if match:
            yield Violation(path, f"the command can exit with {match[1]}")


@rule(
    "command-killing-timeout",
    "warning",
    consequence="a program that is too slow exits with 137: retried for ever",
    fix="let timeout send SIGINT or SIGTERM: it then exits with 124, retried up to jobRetryCount",
)
def killing_timeout(view: JobView) -> Iterator[Violation]:
    """timeout -s KILL ends with 137, which OpenPAI takes for the cluster's own doing."""
    for _, path, text in _commands(view):
        if _KILLING_TIMEOUT.search(shell.unquoted(text)):
            yield Violation(path, "timeout kills with SIGKILL")


@rule(
    "command-ssh-launcher",
    "warning",
    consequence="no connection between tasks: OpenPAI 1.8 does not hand out the job's ssh keys, "
    "LTP often has no ssh at all",
    fix="start the same command in every task; they meet through PAI_HOST_IP_<role>_0",
)
def ssh_launcher(view: JobView) -> Iterator[Violation]:
    """mpirun, horovodrun and the like start the other tasks' processes over ssh."""
    for _, path, text in _commands(view):
        match = _SSH.search(shell.unquoted(text))
        if match and view.tasks > 1:
            yield Violation(path, f"{match[1]} needs ssh between the tasks")


@rule(
    "command-nvidia-smi",
    "warning",
    target="ltp",
    consequence="command not found on AMD nodes: exit code 127, never retried",
    fix="take the number of GPUs from PAI_RESOURCE_<role> and from torch",
)
def nvidia_smi(view: JobView) -> Iterator[Violation]:
    """LTP runs on AMD GPUs as well, where images have no nvidia-smi."""
    for _, path, text in _commands(view):
        if re.search(r"\bnvidia-smi\b", shell.unquoted(text)):
            yield Violation(path, "nvidia-smi is not everywhere")


@rule(
    "command-standalone",
    "warning",
    consequence="each task silently trains alone",
    fix="give torchrun --nnodes, --node_rank and the address of task 0, or use entrypoint.py",
)
def standalone(view: JobView) -> Iterator[Violation]:
    """torchrun --standalone, or torchrun without --nnodes, starts a job of one node."""
    for role, path, text in _commands(view):
        match = re.search(r"\b(torchrun|torch\.distributed\.(run|launch))\b", text)
        alone = "--standalone" in text or not re.search(r"--nnodes|--config|<%|\$", text)
        if match and view.instances(role) > 1 and alone:
            yield Violation(path, f"{match[1]} does not know of the other tasks")
