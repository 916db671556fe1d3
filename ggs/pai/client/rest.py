"""OpenPAI's REST API, version 2, as 1.8.1 and its successor LTP answer it.

A submission is never simply repeated: the server can fail after it has stored the job, so the
client looks for the job first.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

from ggs.errors import ConfigurationError, PAIError, ServerRefusedError, UnreachableError
from ggs.pai.client.clusters import Cluster
from ggs.pai.client.job_filter import JobFilter
from ggs.pai.client.responses import Response, read_json, refusal
from ggs.pai.client.tokens import check_token
from ggs.pai.client.transport import Limits, Log, Transport
from ggs.pai.job import document


class Client:
    """One user's view of one cluster. Close it, or use it in a ``with`` statement.

    Raises ServerRefusedError where the server says no and UnreachableError where no usable answer
    comes; neither, nor the ``repr``, contains a secret.
    """

    def __init__(
        self,
        cluster: Cluster,
        token: str | None = None,
        limits: Limits | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self._http = Transport(cluster, token, limits or Limits(), sleep, clock)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def __repr__(self) -> str:
        return f"Client({self.cluster.user!r} on {self.cluster.uri!r})"

    def hide(self, *secrets: str) -> None:
        """Keep ``secrets`` out of every error message from now on."""
        self._http.hide(*secrets)

    def login(self, password: str) -> str:
        """A token for the cluster's user; clusters with a central login (AAD) offer none."""
        self.hide(password)
        body = {"username": self.cluster.user, "password": password, "expiration": 604800}
        subject = f"user {self.cluster.user!r}"
        try:
            response = self._http.send("POST", "/authn/basic/login", subject, body=_json(body))
        except ServerRefusedError as error:
            if error.status != 404:
                raise
            raise ServerRefusedError(
                f"{self.cluster.uri} has no login with a password: copy a token from the portal's "
                "profile page",
                error.status,
                error.code,
            ) from None
        value = response.json()
        token = value.get("token") if isinstance(value, dict) else None
        if not isinstance(token, str):
            raise UnreachableError("OpenPAI's answer to the login has no token")
        self._http.token = check_token(token)
        self.hide(token)
        return self._http.token

    def get(
        self, path: str, subject: str, parameters: Mapping[str, str | int] | None = None
    ) -> Any:
        """The JSON value at a ``path`` of the API; ``subject`` is what to call it in an error."""
        return self._http.send("GET", path, subject, parameters=parameters).json()

    def change(self, method: str, path: str, subject: str, value: Mapping[str, Any]) -> Any:
        """PUT or DELETE ``value``, and the answer's JSON value."""
        return self._http.send(method, path, subject, body=_json(value)).json()

    def token_owner(self) -> str | None:
        """The user that the server takes the token for; ServerRefusedError if it does not take it.

        None where the server cannot be asked (OpenPAI of before 1.0).
        """
        try:
            value = self.get("/tokens/check", "the token")
        except ServerRefusedError as error:
            if error.status != 404:
                raise
            return None
        name = value.get("username") if isinstance(value, dict) else None
        if not isinstance(name, str) or not name:
            raise UnreachableError("OpenPAI's answer about the token names no user")
        return name

    def jobs(
        self, wanted: JobFilter | None = None, *, limit: int = 20, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Newest first, ``limit`` of them after the first ``offset``; one's own unless asked otherwise."""
        parameters: dict[str, str | int] = {"limit": limit, "order": "submissionTime,DESC"}
        parameters |= {"offset": offset} if offset else {}
        parameters |= (wanted or JobFilter()).parameters(self.cluster.user)
        value = self.get("/jobs", "the job list", parameters)
        if not isinstance(value, list) or not all(isinstance(job, dict) for job in value):
            raise UnreachableError("OpenPAI's job list is not a list of jobs")
        return value

    def job(self, name: str, user: str | None = None, attempt: int | None = None) -> dict[str, Any]:
        """Status of a job and its tasks; ServerRefusedError with code ``NoJobError`` if missing.

        The code is ``NoAttemptError`` where there is the job, but not this attempt of it.
        """
        path = self.job_path(name, user)
        if attempt is None:
            value = self.get(path, f"job {name!r}")
        else:
            try:
                value = self.get(f"{path}/attempts/{attempt}", f"job {name!r}")
            except ServerRefusedError as error:
                if error.code == "NoJobError":
                    raise self._no_attempt(name, user, attempt, error.status) from None
                raise
        if not isinstance(value, dict) or not isinstance(value.get("jobStatus"), dict):
            raise UnreachableError(f"OpenPAI's answer about job {name!r} has no jobStatus")
        return value

    def _no_attempt(
        self, name: str, user: str | None, attempt: int, status: int
    ) -> ServerRefusedError:
        """Why there is no such attempt: OpenPAI says "no job" of it, as where there is no job at all."""
        newest = self.job(name, user)["jobStatus"].get("attemptId")
        if isinstance(newest, int) and newest >= attempt:
            reason = f"OpenPAI has not kept attempt {attempt} of job {name!r}"
        else:
            reason = f"job {name!r} has no attempt {attempt}"
        return ServerRefusedError(f"{reason}: the newest is {newest}", status, "NoAttemptError")

    def exists(self, name: str) -> bool:
        """Whether the user has a job of this name, also one that has ended."""
        try:
            self.job(name)
        except ServerRefusedError as error:
            if error.code != "NoJobError":
                raise
            if error.status == 404:
                return False
            # LTP answers the same 500 for "missing" and for a database that fails: ask twice
            return name in self._names(name)
        return True

    def free_name(self, name: str) -> str:
        """``name`` with the first number behind it that no job of the user has."""
        stem = re.sub(r"-\d{1,6}$", "", name)[:240]
        taken = self._names(stem)
        return next(
            candidate
            for candidate in (f"{stem}-{number}" for number in range(2, len(taken) + 4))
            if candidate not in taken
        )

    def submit(self, name: str, text: str) -> str:
        """Submit the job file ``text`` whose job is called ``name``; returns what happened.

        A refusal raises ServerRefusedError; ``code`` is ``ConflictJobError`` if the name is taken.
        """
        body = text.encode()
        if len(body) > document.MAX_BYTES:
            size = f"{len(body)} bytes, OpenPAI accepts {document.MAX_BYTES}"
            raise ConfigurationError(f"the job file of {name!r} is too large: {size}")
        subject = f"job {name!r}"
        if self.exists(name):
            raise refusal(Response(409, {}, b'{"code":"ConflictJobError","message":""}'), subject)
        for last in (False, True):
            try:
                self._http.send(
                    "POST", "/jobs", subject, body=body, content_type="text/yaml"
                ).json()
                return "accepted"
            except ServerRefusedError as error:
                # a name that is taken only in the second round was taken by the first
                if error.status < 500 and not (last and error.code == "ConflictJobError"):
                    raise
                failure: PAIError = error
            except UnreachableError as error:
                failure = error
            if self._stored(name, failure):
                return f"stored, although the submission seemed to fail ({failure})"
            if last or isinstance(failure, ServerRefusedError):
                raise failure
            self._http.sleep(self._http.limits.backoff)
        raise AssertionError("unreachable: the second round returns or raises")

    def _stored(self, name: str, failure: PAIError) -> bool:
        try:
            return self.exists(name)
        except PAIError as error:
            raise UnreachableError(
                f"the submission failed ({failure}), and whether the job was stored is unknown "
                f"({error}): look with 'pai job status {name}' before you submit it again"
            ) from None

    def stop(self, name: str, user: str | None = None) -> None:
        """Ask OpenPAI to stop the job; it does so within a minute or so."""
        path = self.job_path(name, user) + "/executionType"
        self.change("PUT", path, f"job {name!r}", {"value": "STOP"})

    def config(self, name: str, user: str | None = None) -> dict[str, Any]:
        """The job file as stored, secrets masked (the body is JSON, whatever its type says)."""
        response = self._http.send("GET", self.job_path(name, user) + "/config", f"job {name!r}")
        try:
            value = read_json(response.body)
        except ValueError:
            value = _from_yaml(response)
        if not isinstance(value, dict):
            raise UnreachableError(f"OpenPAI's stored file of job {name!r} is not a job file")
        return value

    def log_addresses(self, path: str) -> dict[str, str]:
        """Addresses of one task's logs (``all``, ``stdout``, ``stderr`` ...) by name.

        ``path`` is the task's ``containerLog``. The addresses contain a short-lived token.
        """
        if not path.startswith("/api/v2/jobs/"):
            raise UnreachableError("OpenPAI's answer names no log for the task")
        value = self.get(path.removeprefix("/api/v2"), "the task's log")
        locations = value.get("locations") if isinstance(value, dict) else None
        return {
            item["name"]: item["uri"] if "://" in item["uri"] else self.cluster.uri + item["uri"]
            for item in (locations if isinstance(locations, list) else [])
            if isinstance(item, dict)
            and isinstance(item.get("name"), str)
            and isinstance(item.get("uri"), str)
        }

    def open_log(self, address: str, byte_range: str | None = None) -> AbstractContextManager[Log]:
        """Open one of ``log_addresses``; ``byte_range`` as in HTTP (``5-``, ``-1000``)."""
        return self._http.open_log(address, byte_range)

    def _names(self, keyword: str) -> set[str]:
        return {str(job.get("name")) for job in self.jobs(JobFilter(keyword=keyword), limit=5000)}

    def job_path(self, name: str, user: str | None) -> str:
        """A job's path in the API; ``user`` is the client's own where it is None."""
        # a command line may hold bytes that are no text
        return f"/jobs/{quote(f'{user or self.cluster.user}~{name}', '~', errors='replace')}"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _from_yaml(response: Response) -> Any:
    try:
        read = document.parse(response.body[: document.MAX_BYTES].decode())
        # Aliases that multiply values are cut short, and half a job file is none.
        return None if any(note.rule == "yaml-aliases" for note in read.notes) else read.value
    except (ValueError, document.DocumentError):
        response.json()  # says what came instead
        return None
