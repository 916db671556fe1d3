"""A local OpenPAI: runs the tasks of a protocol-v2 job on this machine as a cluster would run them.

``run(job: Path | str, options: LocalOptions) -> int`` is the whole interface: a path
is read, a string is the job's YAML text. It prints what it has to say and returns 0 (the job
SUCCEEDED), 1 (FAILED) or 2 (the job file or an option is wrong). ``pai job run-local`` calls it.
"""

from ggs.pai.local.options import LocalOptions as LocalOptions
from ggs.pai.local.run_job import run as run

__all__ = ["LocalOptions", "run"]
