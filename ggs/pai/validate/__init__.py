"""Everything about a job file that OpenPAI would refuse or get wrong, reported before it is submitted.

    findings = validate(Path("job.yaml").read_text())
    exit_code = report([Path("job.yaml")])

One rule is one small function; its docstring is the fact behind it, and `RULES` holds them all.
"""

from ggs.pai.validate.finding import RULES, Finding, Severity, Target
from ggs.pai.validate.render import report, show
from ggs.pai.validate.run_rules import refusal, validate

__all__ = ["RULES", "Finding", "Severity", "Target", "refusal", "report", "show", "validate"]
