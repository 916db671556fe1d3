"""HTTP as the client of OpenPAI needs it: bounded, repeated only where that is safe, secrets kept.

Requests that change nothing are repeated when the network or a proxy fails. No answer is larger or
slower than a limit, no redirect is followed, and the token goes only to the address that it was
given for.
"""

import logging
import random
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import httpx

from ggs.errors import ConfigurationError, PAIError, UnreachableError
from ggs.pai.client.clusters import Cluster
from ggs.pai.client.responses import Response, clean, refusal, scheme_and_host

MAX_RESPONSE_BYTES = 32 << 20
# what httpx raises for an address that is none, and Python's codecs for one that is no text or host
_NO_ADDRESS = (httpx.InvalidURL, UnicodeError)
# httpx logs whole addresses, and those of a task's log contain a token
logging.getLogger("httpx").setLevel(logging.WARNING)


@dataclass(frozen=True)
class Limits:
    """Time-outs in seconds. ``answer`` bounds one whole answer, however slowly it trickles."""

    connect: float = 10.0
    read: float = 30.0
    answer: float = 120.0
    repetitions: int = 3
    backoff: float = 0.5
    longest_wait: float = 60.0


@dataclass(frozen=True)
class Log:
    """An open log: HTTP's status (206: the range asked for; 416: nothing there) and its bytes."""

    status: int
    headers: Mapping[str, str]
    parts: Iterator[bytes]


class Transport:
    """Sends requests to one cluster's REST server, with one user's token.

    Raises ServerRefusedError where the server says no and UnreachableError where no usable answer
    comes; neither contains a secret.
    """

    def __init__(
        self,
        cluster: Cluster,
        token: str | None,
        limits: Limits,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.sleep = sleep
        self._clock = clock
        self.token = token
        self._hide = {token} if token else set()
        self._address = cluster.uri
        self._api = f"{cluster.uri}/rest-server/api/v2"
        self._http = httpx.Client(
            verify=_verification(cluster),
            follow_redirects=False,
            timeout=httpx.Timeout(limits.read, connect=limits.connect),
            headers={"Accept-Encoding": "identity", "User-Agent": "ggs-pai"},
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def hide(self, *secrets: str) -> None:
        """Keep ``secrets`` out of every error message from now on."""
        self._hide.update(secret for secret in secrets if secret)

    def send(
        self,
        method: str,
        path: str,
        subject: str,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        parameters: Mapping[str, str | int] | None = None,
    ) -> Response:
        """The 2xx answer; everything but POST is repeated while that can help."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            request = self._http.build_request(
                method, self._api + path, params=parameters, headers=headers, content=body
            )
        except _NO_ADDRESS as error:
            raise UnreachableError(_network_failure(error, self._address)) from None
        for repetition in range(self.limits.repetitions + 1):
            wait = self.limits.backoff * 2**repetition * random.uniform(0.8, 1.2)
            try:
                answer = self._exchange(request)
                if 200 <= answer.status < 300:
                    return answer
                failure: PAIError = refusal(answer, subject, submitted=method == "POST")
                # a 5xx that is a refusal is LTP's "no such job"
                failed = answer.status >= 500 and isinstance(failure, UnreachableError)
                again = (failed or answer.status == 429) and method != "POST"
                wait = max(wait, answer.retry_after() or 0.0)
            except _NotSentError as error:
                failure, again = UnreachableError(str(error)), error.again
            except UnreachableError as error:
                failure, again = error, method != "POST"
            if (
                not again
                or wait > self.limits.longest_wait
                or repetition == self.limits.repetitions
            ):
                raise failure
            self.sleep(wait)
        raise AssertionError("unreachable: the last repetition returns or raises")

    def _exchange(self, request: httpx.Request) -> Response:
        """Send once and read the whole answer, within the limits of size and time."""
        end = self._clock() + self.limits.answer
        body = bytearray()
        try:
            response = self._http.send(request, stream=True)
            try:
                _require_unpacked(response)
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise UnreachableError(
                            f"the answer is larger than {MAX_RESPONSE_BYTES >> 20} MiB"
                        )
                    if self._clock() > end:
                        raise UnreachableError(
                            f"the answer was not complete after {self.limits.answer:.0f} s"
                        )
            finally:
                response.close()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _NotSentError(
                _network_failure(error, self._address), again=_tls_reason(error) is None
            ) from None
        except (httpx.HTTPError, *_NO_ADDRESS) as error:
            raise UnreachableError(_network_failure(error, self._address)) from None
        return Response(response.status_code, response.headers, bytes(body), frozenset(self._hide))

    @contextmanager
    def open_log(self, address: str, byte_range: str | None = None) -> Iterator["Log"]:
        """Open a log's ``address``; ``byte_range`` as in HTTP (``5-``, ``-1000``)."""
        headers = {"Range": f"bytes={byte_range}"} if byte_range else {}
        self.hide(address)
        try:
            # no Authorization: the address has its own token and may be another company's server
            with self._http.stream("GET", address, headers=headers) as response:
                answer = Response(
                    response.status_code, response.headers, b"", frozenset(self._hide)
                )
                if response.status_code not in (200, 206, 416):
                    raise refusal(answer, "the task's log")
                _require_unpacked(response)
                yield Log(response.status_code, response.headers, response.iter_bytes())
        except (httpx.HTTPError, *_NO_ADDRESS) as error:
            raise UnreachableError(_network_failure(error, address)) from None


class _NotSentError(Exception):
    """No connection came about, so the server cannot have acted; ``again``: it may next time."""

    def __init__(self, message: str, again: bool) -> None:
        super().__init__(message)
        self.again = again


def _require_unpacked(response: httpx.Response) -> None:
    """Refuse what one piece of an answer may grow to gigabytes from; zlib alone gives 1000 bytes a byte."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate", ""):
        raise UnreachableError(
            f"the answer is packed as {clean(encoding, 60)!r}, which was not requested: is this a "
            "proxy, or a server other than OpenPAI's?"
        )


def _verification(cluster: Cluster) -> ssl.SSLContext | bool:
    if cluster.insecure:
        return False
    if cluster.ca_bundle is None:
        return _public_and_machine_trust()
    try:
        return ssl.create_default_context(cafile=cluster.ca_bundle)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "it has no certificate"
        raise ConfigurationError(f"CA bundle {cluster.ca_bundle}: {reason}") from None


@cache
def _public_and_machine_trust() -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    context.load_default_certs()  # the machine's own, where a company puts its authority
    return context


def _network_failure(error: Exception, address: str) -> str:
    """What went wrong on the way to ``address``, of which only scheme and host are named."""
    target = scheme_and_host(address)
    where = clean(f"{target[0]}://{target[1]}", 200) if target else "the address"
    reason = _tls_reason(error)
    if reason is not None:
        return (
            f"{where}: TLS failed ({clean(reason, 200)}): for a private authority give its "
            "certificate to 'pai cluster add --ca-bundle FILE'"
        )
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return f"{where} does not answer: no connection in time; check address, VPN and firewall"
    if isinstance(error, httpx.TimeoutException):
        return f"{where} was silent for too long"
    if isinstance(error, httpx.ConnectError):
        return (
            f"{where} cannot be reached ({clean(str(error), 200)}): check address, VPN and firewall"
        )
    if isinstance(error, httpx.RemoteProtocolError):
        return f"{where} closed the connection too early, or does not speak HTTP"
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL | UnicodeError):
        return f"{where} is not a valid web address"
    return f"{where}: the connection broke ({type(error).__name__})"


def _tls_reason(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return getattr(error, "verify_message", None) or error.reason or "no details"
        error = error.__cause__ or error.__context__
    return None
