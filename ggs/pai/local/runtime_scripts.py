"""The files that OpenPAI's init container leaves in a task's ``/usr/local/pai``.

A task's first process is ``runtime``. It waits for ``go`` (the barrier: all addresses are known),
takes the environment from ``runtime_env.sh``, runs the plugins' pre-commands, the user's script, and,
if that succeeds, the plugins' post-commands.
"""

import shlex
from collections.abc import Mapping, Sequence

import yaml

from ggs.pai.job.model import Job, Plugin
from ggs.pai.local.task_environment import TaskId

_STRICT = "#!/bin/bash\nset -o errexit\nset -o nounset\nset -o pipefail\n"

USER_SCRIPT_ENDED = "user script ended"
"""What the runtime reports, after the run's token, when the user's script has succeeded."""

# $1: a token that marks the runtime's own lines in the task's output.
# A failing script ends the task at once; after one that succeeds the runtime waits for everyone who
# still holds its output: a background process keeps the task alive, as on OpenPAI 1.8.1, where a
# descriptor (62) leaks to it even when it has redirected its own output.
_RUNTIME = """#!/bin/bash
set -o nounset -o pipefail
token=$1
here=$(cd "$(dirname "$0")" && pwd)
until [ -e "$here/go" ]; do sleep 0.05; done
source "$here/runtime.d/runtime_env.sh"
mkfifo "$here/runtime.d/runtime_log_pipe" "$here/runtime.d/user_log_pipe"

# end CODE LOGGER PIPE: the logger passes on the last lines, however late it gets the processor, and ends with
# the pipe's last writer. An empty pipe that somebody still holds (then nothing can be read, not even its end)
# is a background process's: the logger gets a moment for the lines that it has taken.
end() {
  local tries=500
  exec 60<>"$3" 61<"$3" 60>&-  # opened for reading alone, a pipe without a writer would block
  while kill -0 "$2" 2>/dev/null && [ $((tries -= 1)) -gt 0 ]; do
    read -t 0 -u 61 || tries=$((tries < 10 ? tries : 10))
    sleep 0.02
  done
  exit "$1"
}

cat <"$here/runtime.d/runtime_log_pipe" &
logger=$!
/bin/bash "$here/runtime.d/precommands.sh" >"$here/runtime.d/runtime_log_pipe" 2>&1 ||
  end $? $logger "$here/runtime.d/runtime_log_pipe"

cat <"$here/runtime.d/user_log_pipe" &
logger=$!
"$here/runtime.d/user.sh" </dev/null >"$here/runtime.d/user_log_pipe" 2>&1 62>&1 ||
  end $? $logger "$here/runtime.d/user_log_pipe"
echo "$token {USER_SCRIPT_ENDED}"
wait "$logger"
exec /bin/bash "$here/runtime.d/postcommands.sh"
""".replace("{USER_SCRIPT_ENDED}", USER_SCRIPT_ENDED)


def environment_script(environment: Mapping[str, str]) -> str:
    """``runtime_env.sh``: a file that exports ``environment`` when it is sourced."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


def task_files(job: Job, task: TaskId, user_script: str) -> tuple[dict[str, str], list[str]]:
    """Text by path below ``/usr/local/pai``, and what of the job's plugins is not run here.

    Raises:
        ConfigurationError: OpenPAI's init container would fail over a plugin's parameters.
    """
    before: list[str] = []
    after: list[str] = []
    files = {"runtime": _RUNTIME, "runtime.d/user.sh": _STRICT + user_script + "\n"}
    notes = []
    for number, plugin in enumerate(job.plugins(task.role)):
        pre: list[str] = []
        post: list[str] = []
        if plugin.plugin == "cmd":
            pre, post = _cmd_commands(plugin)
        elif plugin.plugin == "tensorboard":
            pre = _tensorboard_commands(job, task, plugin)
        else:
            notes.append(f"{task}: the runtime plugin {plugin.plugin} is not run here")
        for commands, order, name in ((pre, before, "pre"), (post, after, "post")):
            if commands:
                path = f"runtime.d/plugin_{name}{number}.sh"
                files[path] = _plugin_script(commands, plugin.failure_policy)
                line = f'/bin/bash "$(dirname "$0")/plugin_{name}{number}.sh"'
                # Post-commands run in the opposite order of the plugins.
                order.insert(0 if name == "post" else len(order), line)
    files["runtime.d/precommands.sh"] = _STRICT + "\n".join(before) + "\n"
    files["runtime.d/postcommands.sh"] = _STRICT + "\n".join(after) + "\n"
    if job.secrets:
        files["secrets/secrets.yaml"] = yaml.safe_dump(job.secrets)
    return files, notes


def _plugin_script(commands: Sequence[str], failure_policy: str) -> str:
    option = "+" if failure_policy.lower() == "ignore" else "-"
    # As OpenPAI writes it: with `ignore`, the last line makes the script's own exit code 0.
    last = "set -o errexit\n" if option == "+" else ""
    return f"set {option}o errexit\n" + "".join(f"{line}\n" for line in commands) + last


def _cmd_commands(plugin: Plugin) -> tuple[list[str], list[str]]:
    """The pre- and post-commands of the plugin ``cmd``, in either of its two forms."""
    parameters = plugin.parameters
    pre, post = parameters.get("preCommands") or [], parameters.get("postCommands") or []
    for callback in parameters.get("callbacks") or []:
        if callback["event"] == "taskStarts":
            pre = [*pre, *callback["commands"]]
        elif callback["event"] == "taskSucceeds":
            post = [*post, *callback["commands"]]
    return list(map(str, pre)), list(map(str, post))


def _tensorboard_commands(job: Job, task: TaskId, plugin: Plugin) -> list[str]:
    """Starts TensorBoard in the background, in the first task of the first role only."""
    first = TaskId(next(iter(job.task_roles)), 0)
    folders = plugin.parameters.get("logdir") or {}
    if task != first or not folders:
        return []
    port = shlex.quote(str(plugin.parameters.get("port", 6006)))
    if len(folders) == 1:
        where = f"--logdir={shlex.quote(str(next(iter(folders.values()))))}"
    else:
        listed = ",".join(f"{name}:{path}" for name, path in folders.items())
        where = f"--logdir_spec={shlex.quote(listed)}"
    return [
        "command -v tensorboard >/dev/null || { echo 'tensorboard is not in the image'; exit 1; }",
        f"tensorboard {where} --port={port} --bind_all &",
    ]
