"""SPARQL: the facts between IRIs of an endpoint, page by page, by Python's own HTTP client."""

import base64
import http.client
import json
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from oneshot.data.formats.parquet import fact_order
from oneshot.data.sources.address import Address
from oneshot.data.sources.base import Batch, Source, batch_of
from oneshot.errors import InputError

PAGE_ROWS = 10_000
"""Number of results that are requested at a time; many endpoints send no more."""

MAX_PAGES = 2_000
"""Number of requests after which a source is too large to be read page by page."""

ATTEMPTS = 6
PAUSE = 1.0  # seconds before the second attempt; twice as long before each further one
_LONGEST_PAUSE = 60.0
_TIMEOUT = 120  # seconds
_LONGEST_URL = 2_000  # characters; longer queries are sent in the body
_TRY_AGAIN = (429, 502, 503, 504)
_ALL = "SELECT ?s ?p ?o WHERE { ?s ?p ?o }"
_JSON, _N_TRIPLES = "application/sparql-results+json", "application/n-triples"

# Parts of a query that may contain anything: IRIs, strings and comments.
_VERBATIM = re.compile(
    r"<[^<>\"{}|^`\\\s]*>|\"\"\".*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|#[^\n]*",
    re.DOTALL,
)
_PROLOGUE = re.compile(r"\b(?:PREFIX\s+[^\s:]*:|BASE\b)", re.IGNORECASE)
_FORM = re.compile(r"\w+")
_LIMITED = re.compile(r"\b(?:LIMIT|OFFSET|VALUES)\b", re.IGNORECASE)
_ORDERED = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)
_TRIPLE = re.compile(
    r"(?:<(?P<head>[^>]*)>|_:\S+)\s*<(?P<relation>[^>]*)>\s*"
    r"(?:<(?P<tail>[^>]*)>|(?P<blank>_:\S+?)|(?P<literal>\".*))\s*\.\s*(?:#.*)?"
)
_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})")


def read_sparql(address: Address, notes: list[str]) -> Iterator[Batch]:
    """The facts of an endpoint, or the results of a SELECT or CONSTRUCT query, in batches.

    A SELECT query without a limit of its own is sent page by page, until a page is empty: endpoints
    may send fewer results than requested. Facts with a literal are skipped, because it names no
    entity, and those with a blank node, whose label is valid only within one response.
    """
    query = address.options.get("query") or _ALL
    bare = _VERBATIM.sub(" ", query)
    form = _FORM.search(_PROLOGUE.sub(" ", bare))
    name = form[0].upper() if form is not None else ""
    if name not in ("SELECT", "CONSTRUCT"):
        raise address.error(f"expected a SELECT or CONSTRUCT query, not {name or 'nothing'}")
    endpoint = _Endpoint(address)
    skipped = _Skipped()
    if name == "CONSTRUCT":
        yield from _batches(_triples(endpoint.ask(query, _N_TRIPLES), address, skipped), address)
    else:
        after = bare.rpartition("}")[2]
        is_limited = _LIMITED.search(after) is not None
        pages = (
            iter([_page(endpoint, query)])
            if is_limited
            else _pages(endpoint, query, _ORDERED.search(after) is not None)
        )
        first = 0
        for columns, results in pages:
            yield from _batches(_rows(columns, results, address, skipped, first), address)
            first += len(results)
    notes += skipped.notes(address)


Results = list[dict[str, Any]]
Names = list[tuple[str, str, str]]


@dataclass
class _Skipped:
    """Numbers of results that are no facts between IRIs."""

    counts: dict[str, int] = field(default_factory=lambda: {"literal": 0, "blank node": 0})

    def notes(self, address: Address) -> list[str]:
        return [
            f"{address}: skipped {count:,} facts with a {what}"
            for what, count in self.counts.items()
            if count
        ]


def _batches(names: Names, address: Address) -> Iterator[Batch]:
    if names:
        yield batch_of(names, ("head", "relation", "tail"), [0, 1, 2], address, 0)


def _pages(
    endpoint: "_Endpoint", query: str, is_ordered: bool
) -> Iterator[tuple[list[str], Results]]:
    """The results of a SELECT query without limit, page by page."""
    if not is_ordered:
        # Pages of an unordered result may overlap. Its variables are known only from a response.
        columns, _ = _page(endpoint, f"{query}\nLIMIT 0")
        query = f"{query}\nORDER BY {' '.join(f'?{name}' for name in columns)}"
    last: Results | None = None
    offset = 0
    for _ in range(MAX_PAGES):
        columns, results = _page(endpoint, f"{query}\nLIMIT {PAGE_ROWS} OFFSET {offset}")
        if not results:
            return
        if results == last:
            raise endpoint.address.error("the server repeats a page: it ignores OFFSET")
        yield columns, results
        last, offset = results, offset + len(results)
    raise endpoint.address.error(
        f"more than {offset:,} results in {MAX_PAGES:,} requests; give a narrower query, or load a "
        "dump of the graph as a file"
    )


def _page(endpoint: "_Endpoint", query: str) -> tuple[list[str], Results]:
    """The variables and results of one request."""
    text = endpoint.ask(query, _JSON)
    try:
        answer = json.loads(text)
        columns = [str(name) for name in answer["head"]["vars"]]
        results = answer["results"]["bindings"]
        if not isinstance(results, list):
            raise TypeError("bindings is not a list")
    except (ValueError, KeyError, TypeError) as error:
        raise endpoint.address.error(
            f"the response is not a table of SPARQL results in JSON ({text[:80]!r})"
        ) from error
    return columns, results


def _rows(
    columns: Sequence[str], results: Results, address: Address, skipped: _Skipped, first: int
) -> Names:
    """The names in the results of a SELECT query; `first`: the number of results before them."""
    order = fact_order(list(columns), str(address))
    variables = [columns[place] for place in order]
    names: Names = []
    for number, result in enumerate(results, first + 1):
        try:
            terms = [result[variable] for variable in variables]
            kinds = {term["type"] for term in terms}
            if kinds == {"uri"}:
                head, relation, tail = (str(term["value"]) for term in terms)
                names.append((head, relation, tail))
                continue
        except (KeyError, TypeError) as error:
            empty = [v for v in variables if not (isinstance(result, dict) and v in result)]
            fault = f"?{empty[0]} is null" if empty else "not a result of SPARQL"
            raise address.error(fault, where=f"result {number}") from error
        skipped.counts["blank node" if "bnode" in kinds else "literal"] += 1
    return names


def _triples(text: str, address: Address, skipped: _Skipped) -> Names:
    """The names in N-Triples, the response to a CONSTRUCT query."""
    names: Names = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _TRIPLE.fullmatch(line)
        if found is None:
            raise address.error(f"line {number} of the response is not N-Triples ({line[:80]!r})")
        if found["literal"] is not None:
            skipped.counts["literal"] += 1
        elif found["head"] is None or found["blank"] is not None:
            skipped.counts["blank node"] += 1
        else:
            head, relation, tail = (
                _ESCAPED.sub(_character, found[part]) for part in ("head", "relation", "tail")
            )
            names.append((head, relation, tail))
    return names


def _character(escape: re.Match[str]) -> str:
    code = int(escape[1] or escape[2], 16)
    return chr(code) if code < 0x110000 else escape[0]


class _Endpoint:
    """The server of an address, which is asked several times if it is busy."""

    def __init__(self, address: Address) -> None:
        self.address = address
        parts = urlsplit(address.location)
        if parts.scheme not in ("http", "https"):
            raise address.error("expected an address of the form sparql:https://HOST/PATH")
        self.headers = {"User-Agent": "oneshot", "Accept-Encoding": "identity"}
        self.authorization = _authorization(address)
        is_near = parts.hostname in ("127.0.0.1", "::1", "localhost")
        if self.authorization is not None and parts.scheme != "https" and not is_near:
            raise address.error("a password or token is sent only over https")

    def ask(self, query: str, accept: str) -> str:
        """The response to a query."""
        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            try:
                with urllib.request.urlopen(self._request(query, accept), timeout=_TIMEOUT) as got:
                    return str(got.read().decode())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _TRY_AGAIN:
                        raise self._refusal(error) from error
                    wait = error.headers.get("Retry-After", "")
                failure, pause = error, float(wait) if wait.isdecimal() else 0.0
            except (ConnectionRefusedError, UnicodeDecodeError, ssl.SSLError) as error:
                raise self._unreachable(error) from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ConnectionRefusedError | ssl.SSLError) or _is_unknown(reason):
                    raise self._unreachable(reason) from error
                failure, pause = error, 0.0
            if attempt + 1 < ATTEMPTS:
                time.sleep(min(max(PAUSE * 2**attempt, pause), _LONGEST_PAUSE))
        raise self.address.error(
            f"no response after {ATTEMPTS} attempts ({failure}); try again later"
        ) from failure

    def _request(self, query: str, accept: str) -> urllib.request.Request:
        values = urlencode([*self.address.parameters.items(), ("query", query)])
        url = self.address.location
        body = None
        if len(url) + len(values) < _LONGEST_URL:
            url = f"{url}?{values}"
        else:
            body = values.encode()
        request = urllib.request.Request(url, body, {**self.headers, "Accept": accept})
        if self.authorization is not None:
            # Not sent again after a redirection, which may lead to another server.
            request.add_unredirected_header("Authorization", self.authorization)
        return request

    def _refusal(self, error: urllib.error.HTTPError) -> InputError:
        said = " ".join(error.read(2_000).decode(errors="replace").split())[:300]
        fault = f"the server responded {error.code} {error.reason}"
        if error.code in (401, 403):
            return self.address.error(f"{fault}; check the password, or set SPARQL_TOKEN")
        return self.address.error(f"{fault}{f' ({said})' if said else ''}; check the query")

    def _unreachable(self, error: object) -> InputError:
        return self.address.error(f"the server cannot be reached ({error}); check the address")


def _is_unknown(reason: object) -> bool:
    """Whether an error is that of a host name that does not exist."""
    return isinstance(reason, socket.gaierror) and reason.errno != socket.EAI_AGAIN


def _authorization(address: Address) -> str | None:
    """The value of the header: user and password of the address, else the token."""
    if address.user is not None:
        pair = f"{address.user}:{address.password or ''}"
        return "Basic " + base64.b64encode(pair.encode()).decode()
    token = os.environ.get("SPARQL_TOKEN")
    return f"Bearer {token}" if token else None


SPARQL = Source(
    form="sparql:https://HOST/PATH?query=SELECT …",
    options=("query",),
    read=read_sparql,
    has_parameters=True,
)
