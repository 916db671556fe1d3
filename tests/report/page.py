"""A report's page as a test reads it."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Every address that a page would load, the texts of its tables by row, and its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.paragraphs: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script, self._cell, self._paragraph = "", False, False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.addresses += [given[name] or "" for name in ("src", "href") if name in given]
        if tag == "script":
            self._script = given.get("id") or "module"
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True
        elif tag == "p":
            self.paragraphs.append("")
            self._paragraph = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False
        elif tag == "script":
            self._script = ""
        elif tag == "p":
            self._paragraph = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif self._cell:
            self.rows[-1][-1] += data.strip()
        elif self._paragraph:
            self.paragraphs[-1] += data

    def names(self) -> list[str]:
        """The first cell of every row."""
        return [row[0] for row in self.rows]

    def texts(self, name: str) -> list[str]:
        """The other cells of the row called ``name``."""
        return next(row[1:] for row in self.rows if row[0] == name)
