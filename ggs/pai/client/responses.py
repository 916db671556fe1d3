"""What an OpenPAI server's answers mean: JSON taken apart, every refusal one clear sentence.

The texts of OpenPAI 1.8.1 and of LTP differ (ajv 6 and 8), so only status, ``code`` and the shape
of ``message`` decide. A server's own words are shown cleaned: no control characters, no secret,
at most 500 characters.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from ggs.errors import PAIError, ServerRefusedError, UnreachableError
from ggs.text import shorten

MAX_COMPLAINTS = 10
MAX_DEPTH = 100
_LATER = "try again later, and tell an administrator if it lasts"
# where js-yaml 3 and 4 say that a file is wrong
_YAML_PLACE = re.compile(r"at line \d+, column \d+|\(\d+:\d+\)")


@dataclass(frozen=True)
class Response:
    """A complete HTTP answer; ``headers`` has lower-case keys.

    The strings in ``hide`` (tokens, a job's secrets) never appear in an error made from it, even
    where a server or a proxy echoes them.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    hide: Collection[str] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        """The body as text to show: secrets hidden, bytes that are no UTF-8 replaced."""
        return redact(self.body.decode("utf-8", "replace"), self.hide)

    def json(self) -> Any:
        """The body's JSON value; UnreachableError says what came instead."""
        try:
            return read_json(self.body)
        except ValueError:
            raise UnreachableError(_no_json(self)) from None

    def retry_after(self) -> float | None:
        """Seconds that the server asks to wait, if it does."""
        text = self.headers.get("retry-after", "")
        if re.fullmatch(r"\d{1,9}", text):
            return float(text)
        try:
            when = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=timezone.utc)
        return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError if it is none, or nested deeper than can be written again."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for inner in level
            if isinstance(inner, dict | list)
            for item in (inner.values() if isinstance(inner, dict) else inner)
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")


def clean(text: str, limit: int = 500) -> str:
    """``text`` on one line of at most ``limit`` characters, without control characters."""
    text = re.sub(r"\s+", " ", text[: 20 * limit])
    text = "".join(character for character in text if character.isprintable()).strip()
    return shorten(text, limit)


def redact(text: str, hide: Collection[str]) -> str:
    """``text`` with every string of ``hide`` replaced by asterisks."""
    for secret in sorted(hide, key=len, reverse=True):
        text = text.replace(secret, "******")
    return text


def refusal(response: Response, subject: str, submitted: bool = False) -> PAIError:
    """The error for an answer that is not 2xx; ``subject`` is the job or thing that was asked for.

    A missing job has the code ``NoJobError``, also on LTP, which answers 500. Any other 5xx is a
    failure of the server or of a proxy, no refusal, unless a file was ``submitted``: OpenPAI answers
    500 to some files, which no repetition cures.
    """
    if 300 <= response.status < 400:
        return UnreachableError(_redirect(response))
    code, message = _code_and_message(response)
    if code is None and _is_html(response) and response.status != 429:
        return UnreachableError(_no_json(response))
    if response.status == 500 and isinstance(message, str) and "Failed to retrieve job" in message:
        code = "NoJobError"
    elif response.status >= 500 and not submitted:
        return UnreachableError(_sentence(response, code or "", message, subject))
    return ServerRefusedError(
        _sentence(response, code or "", message, subject, submitted), response.status, code or ""
    )


def _sentence(
    response: Response, code: str, message: Any, subject: str, submitted: bool = False
) -> str:
    status = response.status
    reason = clean(message) if isinstance(message, str) else ""
    if status == 400 and code == "InvalidProtocolError":
        return (
            f"OpenPAI refuses the job file: {'; '.join(complaints(message)) or 'no reason given'}"
        )
    if status == 401:
        return (
            f"OpenPAI does not accept the token ({reason or 'no reason given'}): it may have expired "
            "or been revoked; take a new one with 'pai cluster add'"
        )
    if status == 403:
        return f"OpenPAI forbids this for {subject}: {reason or 'no reason given'}"
    if status == 404 and code == "NoStorageError":
        return (
            f"{reason or 'a storage is not found'}: change extras.storages to a storage that you may "
            "use (a new one can need an administrator's refresh)"
        )
    if code == "NoJobError":
        return f"there is no {subject} on this cluster"
    if status == 404 and code in ("", "NoApiError"):
        return f"not found: {reason or subject} (is this the address of an OpenPAI portal?)"
    if status == 404:
        return f"OpenPAI does not find {subject}: {reason or 'no reason given'}"
    if status == 409:
        return f"the name of {subject} is taken, also by a job that has ended; choose a new name"
    if status == 413:
        return f"{subject} is larger than OpenPAI accepts (100 kB): shorten the job file"
    if status == 429:
        return f"OpenPAI's rate limit is reached: try again {_when(response.retry_after())}"
    if status == 500 and _YAML_PLACE.search(reason):
        return f"OpenPAI cannot read the YAML of {subject}: {reason}"
    if status == 500 and '"NaN"' in reason:
        return (
            f"OpenPAI cannot count the GPUs of {subject}: a task role has no 'instances' ({reason})"
        )
    if status in (502, 503, 504):
        return f"OpenPAI is not available at the moment ({status}: {reason or 'no reason given'}): {_LATER}"
    if status >= 500:
        whose = (
            "it may be a fault of the server's, or something in the file that it cannot take"
            if submitted
            else f"the fault is the server's, not yours: {_LATER}"
        )
        return f"OpenPAI's server failed with {subject} ({status}: {reason or 'no reason given'}): {whose}"
    return f"OpenPAI refuses {subject} ({status}{' ' + code if code else ''}): {reason}"


def complaints(message: Any) -> list[str]:
    """The schema's complaints in a 400's ``message``: JSON of ajv's errors, or plain text."""
    if not isinstance(message, str):
        return []
    try:
        errors = read_json(message)
    except ValueError:
        errors = None
    if not isinstance(errors, list):
        return [clean(message)] if message.strip() else []
    unique = list(dict.fromkeys(_complaint(error) for error in errors if isinstance(error, dict)))
    if len(unique) > MAX_COMPLAINTS:
        unique[MAX_COMPLAINTS:] = [f"and {len(unique) - MAX_COMPLAINTS} more"]
    return unique


def _complaint(error: dict[str, Any]) -> str:
    path = error.get("instancePath", error.get("dataPath"))  # ajv 8, ajv 6
    path = path if isinstance(path, str) else ""
    where = clean(path.strip("./").replace("/", "."), 200) or "the top level"
    message = error.get("message")
    text = clean(message, 200) if isinstance(message, str) else "is not valid"
    params = error.get("params")
    if isinstance(params, dict):
        if isinstance(params.get("additionalProperty"), str):
            text += f" ({clean(params['additionalProperty'], 100)!r} is unknown)"
        allowed = params.get("allowedValues", params.get("allowedValue"))
        if allowed is not None:
            text += f" ({clean(json.dumps(allowed), 100)})"
    return f"{where} {text}"


def _code_and_message(response: Response) -> tuple[str | None, Any]:
    """OpenPAI's ``{code, message}``; code None if the body is none, "" if it has no code."""
    try:
        body = read_json(response.body)
    except ValueError:
        body = None
    if not isinstance(body, dict) or "message" not in body:
        return None, "" if _is_html(response) else response.text
    code, message = body.get("code"), body["message"]
    if isinstance(message, str):
        message = redact(message, response.hide)
    return clean(code, 100) if isinstance(code, str) else "", message


def _is_html(response: Response) -> bool:
    return (
        "html" in response.headers.get("content-type", "")
        or response.body[:200].lstrip()[:1] == b"<"
    )


def _no_json(response: Response) -> str:
    if _is_html(response):
        title = re.search(r"<title[^<>]*>([^<]{1,300})", response.text[:100_000], re.IGNORECASE)
        named = f" titled {clean(title[1], 100)!r}" if title else ""
        if response.status >= 500:
            return (
                f"OpenPAI's server is not available: a proxy before it answers with a page{named} "
                f"(status {response.status}): {_LATER}"
            )
        what = f"a web page{named}"
        return (
            f"{what} came back instead of OpenPAI's answer (status {response.status}): a proxy or a "
            "login page stands in between, or this is not the portal's address"
        )
    start = clean(response.text[:200], 60)
    return f"OpenPAI's answer is damaged or cut short ({len(response.body)} bytes: {start!r})"


def _redirect(response: Response) -> str:
    target = scheme_and_host(response.headers.get("location", ""))
    where = clean(f"{target[0]}://{target[1]}", 200) if target else "another page"
    return (
        f"the server redirects to {where} (status {response.status}), where a token must not follow: "
        "if that is the right address, give it to 'pai cluster add'"
    )


def scheme_and_host(text: str) -> tuple[str, str] | None:
    """Scheme and host of an absolute address; without user, path and query, which may be secret."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    host = parts.netloc.rpartition("@")[2]
    return (parts.scheme, host) if parts.scheme and host else None


def _when(seconds: float | None) -> str:
    if seconds is None:
        return "later"
    return f"in {seconds:.0f} s" if seconds < 120 else f"in {seconds / 60:.0f} minutes"
