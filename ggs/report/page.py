"""The report's page: template, charts and the library that draws them, in one file without network."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ggs._version import __version__
from ggs.errors import ConfigurationError
from ggs.report import charts, comparison, tables
from ggs.report.runs import Run, names, read_runs

_MARK = '<meta name="generator" content="ggs report">'
_SCRIPT = """
window.drawChart = (element, spec, config) =>
  vegaEmbed(element, spec, {mode: "vega-lite", renderer: "svg", actions: false, config,
                            tooltip: {theme: config.background === "#ffffff" ? "light" : "dark"}});
"""


def write_report(paths: Sequence[Path], out: Path) -> int:
    """Write a report of the runs in ``paths`` to ``out``. Returns its size in bytes.

    Raises ConfigurationError for a folder without a run, for one given twice and for a file that cannot
    be written or must not be replaced; DataError for a damaged run.
    """
    with _in_one_line(out):
        str(out).encode()
        taken = out.exists() and not _is_report(out)
    if taken:
        raise ConfigurationError(f"out: {out} exists and is no report; give another --out")
    # What no text can hold (odd bytes in the name of a folder) is written as Python writes it.
    text = render(read_runs(paths)).encode(errors="backslashreplace")
    with _in_one_line(out):
        out.write_bytes(text)
    return len(text)


@contextmanager
def _in_one_line(out: Path) -> Iterator[None]:
    """Raise ConfigurationError for whatever the system says to the name ``out``."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is no name for a file"
        raise ConfigurationError(f"out: cannot write {out}: {reason}; give another --out") from None


def render(runs: Sequence[Run]) -> str:
    """The page that compares ``runs``, of which there is at least one."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = (resources.files("ggs.report") / "page.html.jinja").read_text(encoding="utf-8")
    curves, exchange = list(charts.curves(runs)), list(charts.exchange(runs))
    return environment.from_string(template).render(
        mark=Markup(_MARK),
        version=__version__,
        runs=[
            {"name": name, **style}
            for name, style in zip(names(runs), charts.styles(runs), strict=True)
        ],
        notices=comparison.notices(runs),
        against=comparison.against(runs),
        results=tables.results(runs),
        curves=curves,
        exchange=exchange,
        settings=tables.settings(runs),
        environment=tables.environment(runs),
        specs=_json([chart.spec for chart in [*curves, *exchange]]),
        palettes=_json({"light": charts.LIGHT, "dark": charts.DARK}),
        library=_library(),
    )


def _json(value: Any) -> Markup:
    """JSON that may stand in a script element: nothing in it ends the element."""
    return Markup(json.dumps(value, allow_nan=False).replace("<", "\\u003c"))


@cache  # making it takes seconds
def _library() -> Markup:
    """Vega-Lite with all it needs, as one module."""
    try:
        import vl_convert
    except ImportError:
        raise ConfigurationError(
            "a report needs the package vl-convert-python: pip install 'ggs[report]'"
        ) from None
    bundle: str = vl_convert.javascript_bundle(_SCRIPT)
    assert "</script" not in bundle.lower()
    return Markup(bundle)


def _is_report(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return _MARK in file.read(4096)
