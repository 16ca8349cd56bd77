"""Replays: a sampled request is sent twice more, with and without speculation, and the two replies are compared.

Both are sent for a whole reply and at temperature 0, where speculation should change nothing: a target that rejects
what it would not have said says the same. Texts that differ are no fault by themselves, as a batch of another shape
rounds otherwise; that they mean something else is one.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import httpx

from .probes.similarity import Budget, Kind
from .similarity import Pair, Texts
from .tap.request import Request
from .tap.tap import RequestHead

_log = logging.getLogger(__name__)

#: Bytes of a body, and tokens of a reply, at most.
_MOST_BODY = 65_536
_MOST_TOKENS = 512
#: Requests in flight at most, for a replay to begin.
_MOST_IN_FLIGHT = 8
_TIMEOUT_S = 120.0
#: What servers ask for to let a request in.
_CREDENTIALS = (b"authorization", b"api-key", b"x-api-key")


class _NoReplay(ValueError):
    """A request cannot be replayed; the message is of no one's words."""


class Ways(NamedTuple):
    """Where a request is served with and without speculation."""

    speculative: str
    plain: str
    #: The request without speculation says so in its body.
    opt_out: bool


Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Replays:
    """One per process. For use in the event loop; one request at a time is replayed."""

    def __init__(
        self,
        share: float,
        per_minute: float,
        client: httpx.AsyncClient,
        *,
        ways: Callable[[], Ways | None],
        in_flight: Callable[[], int],
        spawn: Spawn,
        done: Callable[[Pair], None],
    ) -> None:
        """`ways` gives None while nothing may be replayed; `done` is given each pair of replies."""
        self._share = share
        self._budget = Budget(per_minute)
        self._client = client
        self._ways = ways
        self._in_flight = in_flight
        self._spawn = spawn
        self._done = done
        self._busy = False

    def sample(self, endpoint: str, head: RequestHead, request: Request, body: bytes, scenario: str) -> None:
        """See a request that has just come."""
        if random.random() >= self._share or endpoint != "chat_completions" or len(body) > _MOST_BODY:  # noqa: S311
            return
        # Behind the upstream's address, anything else may name another host.
        if not head.path.startswith(b"/"):
            return
        if self._busy or request.replies > 1 or request.plain or self._in_flight() > _MOST_IN_FLIGHT:
            return
        ways = self._ways()
        if ways is None or not self._budget.take(time.monotonic()):
            return
        fields = {b"content-type": b"application/json"}
        fields |= {name: value for name in _CREDENTIALS if (value := head.value(name)) is not None}
        self._busy = True
        self._spawn(self._replay(ways, head.path.decode("latin-1"), fields, body, scenario), "replay")

    async def _replay(self, ways: Ways, path: str, fields: dict[bytes, bytes], body: bytes, scenario: str) -> None:
        try:
            with_, without = bodies(body, opt_out=ways.opt_out)
            request_id, first = await self._ask(ways.speculative + path, fields, with_)
            _, second = await self._ask(ways.plain + path, fields, without)
            if not first and not second:
                # Tool calls, or reasoning alone: nothing is known of these.
                raise _NoReplay("neither reply has a text")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            # Words of httpx and h11 quote what was sent and received.
            _log.info("a request was not replayed: %s", error if type(error) is _NoReplay else type(error).__name__)
        else:
            self._done(Pair(Kind.REPLAY, request_id, lambda: Texts(first, second), scenario))
        finally:
            self._busy = False

    async def _ask(self, url: str, fields: dict[bytes, bytes], body: bytes) -> tuple[str, str]:
        """Id and text of the reply. Raises httpx.HTTPError and ValueError."""
        answer = await self._client.post(url, content=body, headers=fields, timeout=_TIMEOUT_S)
        if answer.status_code != 200:
            raise _NoReplay(f"the upstream answered {answer.status_code}")
        try:
            value = answer.json()
            text = value["choices"][0]["message"]["content"] or ""
            # Half a surrogate pair is valid in JSON, and nowhere else.
            return str(value["id"]), text.encode("utf-8", "replace").decode()
        except (KeyError, IndexError, TypeError, AttributeError):
            raise _NoReplay("the reply has no text") from None


def bodies(body: bytes, *, opt_out: bool) -> tuple[bytes, bytes]:
    """What is sent to be served with and without speculation. Raises ValueError for a body that is no JSON object."""
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise _NoReplay("the body is no JSON object")
    asked.pop("stream_options", None)
    asked |= {"stream": False, "temperature": 0}
    limit = "max_completion_tokens" if "max_completion_tokens" in asked else "max_tokens"
    most = asked.get(limit)
    asked[limit] = min(most, _MOST_TOKENS) if isinstance(most, int) else _MOST_TOKENS
    plain = dict(asked)
    if opt_out:
        own = asked.get("vllm_xargs")
        plain["vllm_xargs"] = (own if isinstance(own, dict) else {}) | {"speculative": False}
    return json.dumps(asked).encode(), json.dumps(plain).encode()
