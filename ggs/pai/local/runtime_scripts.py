"""The files that OpenPAI's init container leaves in a task's ``/usr/local/pai``.

A task's first process is ``runtime``. It waits for ``go`` (the barrier: all addresses are known),
takes the environment from ``runtime_env.sh``, runs the plugins' pre-commands, the user's script, and,
if that succeeds, the plugins' post-commands.
"""

import shlex
from collections.abc import Mapping

import yaml

from ggs.launch.pai_names import role_key
from ggs.pai.job.model import Job
from ggs.pai.job.plugin_scripts import prepare
from ggs.pai.job.plugins import entries
from ggs.pai.job.stored import in_container
from ggs.pai.local.task_environment import TaskId

RUNTIME_FOLDER = "/usr/local/pai"
# They need the cluster: its users' keys, a clone before the task.
_NOT_HERE = ("ssh", "git")

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


def task_files(
    job: Job, stored: object, task: TaskId, user_script: str
) -> tuple[dict[str, str], list[str]]:
    """Text by path below ``/usr/local/pai``, and what of the job's plugins is not run here.

    Args:
        stored: The job file as the init container reads it (``read_in_container``).

    Raises:
        InitFailure: OpenPAI's init container would fail.
    """
    before: list[str] = []
    after: list[str] = []
    files = {"runtime": _RUNTIME, "runtime.d/user.sh": _STRICT + user_script + "\n"}
    notes = []
    role = role_key(task.role)
    secrets = in_container(job.secrets) if job.secrets else None
    first = task == TaskId(next(iter(job.task_roles)), 0)
    for number, entry in enumerate(entries(stored, role)):
        scripts = prepare(entry, stored, secrets, role, first_task=first)
        if scripts.name in _NOT_HERE:
            notes.append(f"{task}: the runtime plugin {scripts.name} is not run here")
            continue
        for path, text in (scripts.files or {}).items():
            files[path.removeprefix(f"{RUNTIME_FOLDER}/")] = text
        for text, order, name in ((scripts.before, before, "pre"), (scripts.after, after, "post")):
            if text:
                path = f"runtime.d/plugin_{name}{number}.sh"
                files[path] = text
                # Post-commands run in the opposite order of the plugins.
                order.insert(
                    0 if name == "post" else len(order), f"/bin/bash {RUNTIME_FOLDER}/{path}"
                )
    files["runtime.d/precommands.sh"] = _STRICT + "\n".join(before) + "\n"
    files["runtime.d/postcommands.sh"] = _STRICT + "\n".join(after) + "\n"
    if job.secrets:
        files["secrets/secrets.yaml"] = yaml.safe_dump(in_container(job.secrets))
    return files, notes
