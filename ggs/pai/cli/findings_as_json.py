"""``pai job validate --json``: every finding as an object."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ggs.pai.cli import terminal
from ggs.pai.job.document import DocumentError, load
from ggs.pai.validate import Target, refusal, validate


def report_as_json(files: Sequence[Path], target: Target) -> int:
    """Print a list with ``file``, ``findings`` or ``unreadable`` of each file; the worst is the exit code."""
    code = 0
    found: list[dict[str, Any]] = []
    for file in files:
        try:
            findings = validate(load(file), target=target)
        except DocumentError as error:
            findings = [refusal(error)]
        except OSError as error:
            found.append({"file": str(file), "unreadable": error.strerror})
            code = 2
            continue
        found.append({"file": str(file), "findings": [asdict(finding) for finding in findings]})
        code = max(code, any(finding.severity == "error" for finding in findings))
    terminal.result_json(found)
    return code
