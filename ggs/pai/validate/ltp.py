"""What only LTP, OpenPAI's successor, minds in a job file: its reader, its schema, its jobType."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.validate.finding import JobView, Violation, rule

_INFERENCE = ("INTERNAL_SERVER_IP", "INTERNAL_SERVER_PORT", "API_KEY")


@rule(
    "ltp-type",
    "error",
    target="ltp",
    consequence="LTP answers 400 InvalidProtocolError",
    fix="write plain decimal numbers, and leave ports out where there are none",
)
def ltp_type(view: JobView) -> Iterator[Violation]:
    """LTP reads YAML 1.2, where 1:30 is text and no number, and its schema wants mappings where
    1.8.1's forgets to: an empty ports is refused."""
    known = {path for path, _ in view.refusals}
    for path, error in view.ltp_refusals:
        if path not in known and path[:1] != ("extras",):
            yield Violation(path, f"LTP reads another kind of value: {error['msg']}")
    for role in view.roles:
        resources = view.mapping("taskRoles", role, "resourcePerInstance")
        path = ("taskRoles", role, "resourcePerInstance", "ports")
        if "ports" in resources and not isinstance(resources["ports"], dict) and path not in known:
            yield Violation(path, "ports is no mapping")


@rule(
    "job-type",
    "error",
    target="openpai",
    consequence="OpenPAI 1.8.1 answers 400: it does not know the key",
    fix="leave jobType out: LTP does not require it",
)
def job_type(view: JobView) -> Iterator[Violation]:
    """jobType is a key of LTP alone."""
    if "jobType" in view.mapping():
        yield Violation(("jobType",), "jobType exists only on LTP")


@rule(
    "job-type-value",
    "error",
    target="ltp",
    consequence="LTP answers 400",
    fix="write training, inference or others",
)
def job_type_value(view: JobView) -> Iterator[Violation]:
    """LTP's jobType is training, inference or others."""
    value = view.document.get("jobType")
    if "jobType" in view.mapping() and value not in ("training", "inference", "others"):
        yield Violation(("jobType",), f"{value!r} is not a job type")


@rule(
    "job-type-inference",
    "error",
    target="ltp",
    consequence="LTP answers 400",
    fix="add it under parameters, or write jobType: training",
)
def job_type_inference(view: JobView) -> Iterator[Violation]:
    """An inference job has the parameters INTERNAL_SERVER_IP, INTERNAL_SERVER_PORT and API_KEY, by which
    LTP's model proxy finds it."""
    if view.document.get("jobType") == "inference":
        for name in _INFERENCE:
            if name not in view.parameters:
                yield Violation(("parameters", name), f"the parameter {name} is missing")
