"""An OpenPAI REST server over a real socket: the answers of 1.8.1, or of LTP, and their faults.

It knows what the client and the command line need: login, submitting (with the checks, limits and
error bodies of the real server), listing, status, stopping, stored files and logs. ``faults`` go
first: each spoils one request in the way that it describes.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.pai import fake_cluster

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJ1c2VybmFtZSI6ImFsaWNlIn0.c2lnbmF0dXJlLW9mLWFsaWNl"
# of an administrator called carol, and of bob, as OpenPAI signs them; bob has an opaque one besides
TOKEN_OF_CAROL = "eyJhbGciOiJIUzI1NiJ9.eyJ1c2VybmFtZSI6ImNhcm9sIn0.c2lnbmF0dXJlLW9mLWNhcm9s"
TOKEN_OF_BOB = "eyJhbGciOiJIUzI1NiJ9.eyJ1c2VybmFtZSI6ImJvYiJ9.c2lnbmF0dXJlLW9mLWJvYg"
PASSWORD = "correct-horse-9"
LOG_TOKEN = "short-lived-log-token"
REQUIRED = ["protocolVersion", "name", "type", "taskRoles"]
OPTIONAL = ["version", "contributor", "description", "jobRetryCount", "prerequisites", "parameters"]
OPTIONAL += ["secrets", "deployments", "defaults", "extras"]


@dataclass
class StoredJob:
    """A job on the server; every GET takes one of ``states`` until one is left."""

    user: str
    text: str
    states: deque[dict[str, Any]] = field(default_factory=lambda: deque([{"state": "WAITING"}]))
    tasks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    attempts: int = 1
    """Number of the newest attempt, and one; earlier ones are kept but for those in ``lost``."""
    lost: frozenset[int] = frozenset()
    tags: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    virtual_cluster: str = "default"
    submitted: float = field(default_factory=time.time)


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Refuse(Exception):
    """An answer of OpenPAI's error handler."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        self.status = status
        self.body = {"message": message} if code is None else {"code": code, "message": message}


class FakePAI:
    """``with FakePAI() as server``: listens on 127.0.0.1 at a free port until the end of the block.

    ``flavour`` is ``openpai`` (1.8.1) or ``ltp``; with ``certificate`` (a PEM file with its key) it
    speaks TLS.
    """

    def __init__(self, flavour: str = "openpai", certificate: Path | None = None) -> None:
        self.flavour = flavour
        self.users = {TOKEN: "alice", TOKEN_OF_BOB: "bob", "token-of-bob": "bob"}
        self.users[TOKEN_OF_CAROL] = "carol"
        self.administrators = {"carol"}
        self.names_of_logins = {"alice": "alice"}
        self.storages = {"team", "datasets"}
        self.jobs: dict[tuple[str, str], StoredJob] = {}
        self.faults: deque[tuple[str, Callable[[_Handler], None]]] = deque()
        self.requests: list[Request] = []
        self.silence = threading.Semaphore(0)
        """One for each answer that will never come."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.pai = self  # type: ignore[attr-defined]
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    def __enter__(self) -> FakePAI:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)

    def fault(self, method: str, *faults: Callable[[_Handler], None]) -> None:
        """Spoil the next requests of ``method``, one each."""
        self.faults.extend((method, fault) for fault in faults)

    def sent(self, method: str) -> list[Request]:
        """The requests of ``method`` that came in."""
        return [request for request in self.requests if request.method == method]

    def add_job(self, name: str, user: str = "alice", **fields: Any) -> StoredJob:
        """Store a job without a request."""
        self.jobs[user, name] = job = StoredJob(user, f"name: {name}\ntype: job\n", **fields)
        return job

    def submit(self, user: str, text: str, content_type: str) -> dict[str, Any]:
        """What POST /jobs does; raises Refuse."""
        if len(text.encode()) > 102400:
            raise Refuse(413, None, "request entity too large")
        if not content_type.startswith("text/"):
            raise Refuse(400, "InvalidProtocolError", self._ajv([("", "type", {}, "be object")]))
        try:
            job = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = error.problem_mark  # type: ignore[attr-defined]
            raise Refuse(
                500,
                None,
                f"bad indentation of a mapping entry at line {mark.line + 1}, column 5:\n  {text}",
            ) from None
        self._check_schema(job)
        name = job["name"]
        if (user, name) in self.jobs:
            raise Refuse(409, "ConflictJobError", f"Job {user}~{name} already exists.")
        cluster = job.get("defaults", {}).get("virtualCluster", "default")
        if cluster != "default":
            message = f"User {user} is not allowed to do operation in {cluster}"
            raise Refuse(403, "ForbiddenUserError", message)
        for storage in job.get("extras", {}).get("storages", []):
            if storage["name"] not in self.storages:
                raise Refuse(404, "NoStorageError", f"Storage {storage['name']} is not found.")
        if any("instances" not in role for role in job["taskRoles"].values()):
            raise Refuse(500, "UnknownError", 'invalid input syntax for type integer: "NaN"')
        self.jobs[user, name] = StoredJob(user, text)
        message = f"Update job {name} for user {user} successfully."
        return {"status": 202, "message": message}

    def _check_schema(self, job: Any) -> None:
        errors: list[tuple[str, str, dict[str, Any], str]] = []
        if not isinstance(job, dict):
            errors.append(("", "type", {"type": "object"}, "be object"))
            job = {}
        known = [*REQUIRED, *OPTIONAL] + ["jobType"] * (self.flavour == "ltp")
        for key in job:
            if key not in known:
                parameters = {"additionalProperty": key}
                errors.append(
                    ("", "additionalProperties", parameters, "NOT have additional properties")
                )
        for key in REQUIRED:
            if key not in job:
                errors.append(
                    ("", "required", {"missingProperty": key}, f"have required property '{key}'")
                )
        for name, role in (job.get("taskRoles") or {}).items():
            for key in ("dockerImage", "resourcePerInstance", "commands"):
                if key not in role:
                    text = f"have required property '{key}'"
                    errors.append((f"taskRoles.{name}", "required", {"missingProperty": key}, text))
        if errors:
            raise Refuse(400, "InvalidProtocolError", self._ajv(errors))
        for image in job.get("prerequisites", []):
            if self.flavour == "ltp" and image.get("uri", "").startswith("docker.io/"):
                raise Refuse(400, "InvalidImageError", f"Image {image['uri']} is not allowed.")

    def _ajv(self, errors: list[tuple[str, str, dict[str, Any], str]]) -> str:
        """Complaints as ajv 6 (OpenPAI) or ajv 8 (LTP) words them."""
        listed = []
        for path, keyword, parameters, text in errors:
            error: dict[str, Any] = {"keyword": keyword, "params": parameters}
            if self.flavour == "ltp":
                error["instancePath"] = "/" + path.replace(".", "/") if path else ""
                error["message"] = f"must {text}"
            else:
                error["dataPath"] = f".{path}" if path else ""
                error["message"] = f"should {text}"
            listed.append(error)
        return json.dumps(listed)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20
    disable_nagle_algorithm = True  # else each body waits 40 ms for its header's acknowledgement

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    @property
    def pai(self) -> FakePAI:
        return self.server.pai  # type: ignore[attr-defined,no-any-return]

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client hung up, or refused our certificate
            self.close_connection = True

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.pai.requests.append(Request(self.command, self.path, headers, self.body))
        faults = self.pai.faults
        if faults and faults[0][0] == self.command:
            faults.popleft()[1](self)
        else:
            self.answer()

    def answer(self) -> None:
        """Do what OpenPAI does."""
        try:
            status, value = self._act()
        except Refuse as refuse:
            status, value = refuse.status, refuse.body
        if value is not None:
            self.reply(status, json.dumps(value).encode())

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        """Send a whole answer; header names are written with ``_``."""
        headers = {"Content_Type": "application/json", "Content_Length": str(len(body))} | headers
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _act(self) -> tuple[int, Any]:
        url = urlsplit(self.path)
        if url.path.startswith("/log-manager/"):
            self._serve_log(url.query)
            return 200, None
        path = unquote(url.path.removeprefix("/rest-server/api/v2"))
        if (self.command, path) == ("POST", "/authn/basic/login"):
            return self._login()
        user = self.pai.users.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if user is None:
            raise Refuse(401, "UnauthorizedUserError", "Your token is invalid.")
        if path == "/tokens/check":
            return 200, {"username": user, "admin": user in self.pai.administrators}
        if path == "/jobs" and self.command == "POST":
            content_type = self.headers.get("Content-Type", "")
            return 202, self.pai.submit(user, self.body.decode(), content_type)
        if path == "/jobs":
            return 200, self._list(parse_qs(url.query))
        if self.command == "GET" and (answer := fake_cluster.answer(path, url.query, user)):
            return answer
        match = re.fullmatch(r"/jobs/([^/~]+)~([^/]+)(/.*)?", path)
        if match is None:
            raise Refuse(404, "NoApiError", f"API {self.path} is not found.")
        return self._job(user, match[1], match[2], match[3] or "")

    def _login(self) -> tuple[int, Any]:
        if self.pai.flavour == "ltp":  # a central login (AAD) only
            raise Refuse(404, "NoApiError", f"API {self.path} is not found.")
        form = json.loads(self.body)
        if form["username"] not in self.pai.names_of_logins:
            raise Refuse(400, "NoUserError", f"User {form['username']} is not found.")
        if form["password"] != PASSWORD:
            raise Refuse(400, "IncorrectPasswordError", "Password is incorrect.")
        return 200, {"user": "alice", "token": TOKEN, "admin": False}

    def _list(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        def listed(key: str, otherwise: str) -> list[str]:
            return query.get(key, [otherwise])[0].split(",")

        jobs = [
            {
                "name": name,
                "username": user,
                "state": job.states[0]["state"],
                "submissionTime": int(job.submitted * 1000),
                "tags": job.tags,
                "virtualCluster": job.virtual_cluster,
                "totalTaskNumber": 2,
                "totalGpuNumber": 0,
                "retries": 0,
            }
            for (user, name), job in self.pai.jobs.items()
            if user in listed("username", user)
            and job.states[0]["state"] in listed("state", job.states[0]["state"])
            and job.virtual_cluster in listed("vc", job.virtual_cluster)
            and ("tagsContain" not in query or set(job.tags) & set(listed("tagsContain", "")))
            and not set(job.tags) & set(listed("tagsNotContain", ""))
            and query.get("keyword", [""])[0] in user + "\n" + name
        ]
        start = int(query.get("offset", ["0"])[0])
        return jobs[::-1][start : start + int(query.get("limit", ["5000"])[0])]

    def _job(self, asking: str, user: str, name: str, rest: str) -> tuple[int, Any]:
        job = self.pai.jobs.get((user, name))
        if job is None:
            raise self._missing(user, name, f"Job {user}~{name} is not found.")
        mine = asking == user or asking in self.pai.administrators
        if not mine and (self.pai.flavour == "ltp" or self.command != "GET"):
            message = f"User {asking} is not allowed to execute job {user}~{name}."
            raise Refuse(403, "ForbiddenUserError", message)
        if rest == "/executionType":
            if json.loads(self.body) != {"value": "STOP"}:
                raise Refuse(400, "InvalidParametersError", "Could not validate request data.")
            job.states = deque([{"state": "STOPPED"}])
            return 202, {"status": 202, "message": f"Execute job {user}~{name} successfully."}
        if rest == "/tag":
            return self._tag(job, f"{user}~{name}", json.loads(self.body)["value"])
        if rest == "/events":
            kind = parse_qs(urlsplit(self.path).query).get("type")
            found = [event for event in job.events if kind in (None, [event["type"]])]
            return 200, {"totalCount": len(found), "data": found[::-1]}
        if rest == "/job-attempts":
            kept = [number for number in range(job.attempts) if number not in job.lost]
            return 200, [fake_cluster.attempt(number, job.attempts) for number in kept[::-1]]
        if rest == "/config":
            text = re.sub(
                r"(?ma)^(secrets:)[\s\S]*?^(\w)", r'\1 "******"\n\2', job.text + "\nZ", count=1
            )
            body = json.dumps(yaml.safe_load(text[:-2])).encode()
            self.reply(200, body, Content_Type="text/yaml; charset=utf-8")
            return 200, None
        match = re.fullmatch(
            r"/attempts/\d+/taskRoles/(\w+)/taskIndex/(\d+)/attempts/\d+/logs", rest
        )
        if match:
            return 200, self._log_addresses(user, name, job, f"{match[1]}:{match[2]}")
        attempt = re.fullmatch(r"/attempts/(\d+)", rest)
        number = int(attempt[1]) if attempt else job.attempts - 1
        if number >= job.attempts or number in job.lost:
            raise self._missing(user, name, f"JobAttemptId {number} is not found in {user}~{name}.")
        state = job.states.popleft() if len(job.states) > 1 else job.states[0]
        tasks = state.pop("tasks", job.tasks) if "tasks" in state else job.tasks
        roles = {
            role: {"taskRoleStatus": {"name": role}, "taskStatuses": statuses}
            for role, statuses in tasks.items()
        }
        status = {
            "username": user,
            "retries": 0,
            "attemptId": number,
            "virtualCluster": job.virtual_cluster,
        }
        answer = {"name": name, "tags": job.tags, "jobStatus": status | state, "taskRoles": roles}
        return 200, answer

    def _tag(self, job: StoredJob, full_name: str, tag: str) -> tuple[int, Any]:
        if self.command == "PUT":
            job.tags += [tag] * (tag not in job.tags)
        elif tag in job.tags:
            job.tags.remove(tag)
        else:
            raise Refuse(404, "NoTagError", f"Tag {tag} is not found for job {full_name}.")
        return 200, {"status": 200, "message": f"tag {tag} of job {full_name}: done"}

    def _missing(self, user: str, name: str, message: str) -> Refuse:
        if self.pai.flavour == "ltp":
            return Refuse(500, "UnknownError", f"Failed to retrieve job {user}~{name}.")
        return Refuse(404, "NoJobError", message)

    def _log_addresses(self, user: str, name: str, job: StoredJob, task: str) -> dict[str, Any]:
        if task not in job.logs:
            raise Refuse(404, "NoTaskLogError", "Log of task is not found.")
        prefix = "/log-manager/10.0.0.1:9103/api/v1/logs/"
        query = f"username={user}&framework-name={name}&pod-uid={task}&token={LOG_TOKEN}"
        return {
            "locations": [
                {"name": kind, "uri": f"{prefix}user-{kind}?{query}"} for kind in ("stdout", "all")
            ]
        }

    def _serve_log(self, query: str) -> None:
        values = {key: value[0] for key, value in parse_qs(query).items()}
        if values.get("token") != LOG_TOKEN:
            self.reply(403, b"")
            return
        job = self.pai.jobs[values["username"], values["framework-name"]]
        data = job.logs[values["pod-uid"]]
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            self.reply(200, data, Content_Type="text/plain")
            return
        start = int(match[1]) if match[1] else max(0, len(data) - int(match[2]))
        if start >= len(data):
            self.reply(416, b"", Content_Range=f"bytes */{len(data)}")
            return
        span = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.reply(206, data[start:], Content_Type="text/plain", Content_Range=span)


def task(role: str, index: int, state: str, name: str = "job", **fields: Any) -> dict[str, Any]:
    """One entry of ``taskStatuses``."""
    log = f"/api/v2/jobs/alice~{name}/attempts/0/taskRoles/{role}/taskIndex/{index}/attempts/0/logs"
    return {"taskIndex": index, "taskState": state, "containerLog": log, "retries": 0} | fields


def drop(handler: _Handler) -> None:
    """Hang up without an answer and without having done anything."""
    handler.close_connection = True


def act_then_drop(handler: _Handler) -> None:
    """Do what was asked, and hang up without an answer."""
    handler.reply = lambda *_, **__: None  # type: ignore[method-assign]
    handler.answer()
    handler.close_connection = True


def act_then_fail(handler: _Handler) -> None:
    """Do what was asked, and say that it failed: LTP, when tagging a stored job fails."""
    handler.reply = lambda *_, **__: None  # type: ignore[method-assign]
    handler.answer()
    del handler.reply  # the client's next request may come over the same connection
    handler.reply(
        500, b'{"code":"UnknownError","message":"insert or update on table \\"tags\\" failed"}'
    )


def truncate(handler: _Handler) -> None:
    """Break off within the body."""
    handler.reply(200, b'{"jobStatus": {"state": "RUN', Content_Length="5000")
    handler.close_connection = True


def silent(handler: _Handler) -> None:
    """Say nothing, until the client has had enough and hangs up."""
    handler.pai.silence.release()
    handler.rfile.read(1)
    handler.close_connection = True


def trickle(handler: _Handler) -> None:
    """Send a byte now and then, until the client hangs up."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def endless(handler: _Handler) -> None:
    """Send far more than anyone asked for."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(1 << 20))


def say(status: int, body: bytes, **headers: str) -> Callable[[_Handler], None]:
    """Send exactly this."""
    return lambda handler: handler.reply(status, body, **headers)


def page(status: int, title: str = "502 Bad Gateway") -> Callable[[_Handler], None]:
    """A proxy's or a login's web page."""
    text = f"<html>\r\n<head><title>{title}</title></head><body>nginx</body></html>"
    return say(status, text.encode(), Content_Type="text/html")
