"""Address: the location of a data source, what to read from it, and the user who reads."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from oneshot.errors import InputError

# A query extends to the end of the address: it may contain & and ? itself.
_QUERY = re.compile(r"(?:^|&)query=(.*)\Z", re.DOTALL)
_OPTION = re.compile(r"[A-Za-z][\w.-]*")
_HIDDEN = "***"
_SECRETS = ("NEO4J_PASSWORD", "SPARQL_TOKEN", "PGPASSWORD", "MYSQL_PWD")


@dataclass(frozen=True)
class Address:
    """The address of a data source. Its text contains no user, password or token.

    `scheme`: the name of the source in the registry. `location`: what follows the first colon, up
    to the question mark, without user and password: a file, or `//HOST:PORT/PATH`, or a URL.
    `options`: the values after the question mark that oneshot understands, such as `table` and
    `query`. `parameters`: the other values there, for the server; they may be secret. `user`,
    `password`: decoded; None if the address has none.
    """

    scheme: str
    location: str
    options: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, form: str, is_file: bool = False) -> "Address":
        """The parts of an address; raises if a server has no valid host and port.

        `form`: the form of such addresses, for messages. All values after the question mark become
        options.

        `table` and other short options may be percent-encoded. A query is used as it is; only if
        it contains no space, it is percent-decoded. So both `SELECT a FROM b` and
        `SELECT%20a%20FROM%20b` can be given, and `LIKE '%ab'` keeps its meaning.
        """
        scheme, _, rest = text.partition(":")
        scheme = scheme.lower()
        location, _, tail = rest.partition("?")
        values: dict[str, str] = {}
        query = _QUERY.search(tail)
        if query is not None:
            tail = tail[: query.start()]
            is_encoded = not re.search(r"\s", query[1])
            values["query"] = (unquote(query[1]) if is_encoded else query[1]).strip()
        for part in filter(None, tail.split("&")):
            name, _, value = part.partition("=")
            if not _OPTION.fullmatch(name):
                if is_file:
                    raise InputError(f"{scheme}:{location}: {part!r} is no option; expected {form}")
                raise _unreadable(scheme)  # it may be the end of a password, so it is not shown
            values[name] = unquote(value)
        user = password = None
        if not is_file:
            location, user, password = _without_user(scheme, location, form)
        return cls(scheme, location, values, {}, user, password)

    def __str__(self) -> str:
        """The address for messages, without options."""
        return f"{self.scheme}:{self.location}"

    @property
    def public(self) -> str:
        """The address with its options, as it is stored: without user, password and parameters."""
        short = [
            f"{name}={quote(value, safe='')}"
            for name, value in self.options.items()
            if name != "query"
        ]
        query = self.options.get("query")
        options = [*short, *([] if query is None else [f"query={query}"])]
        return str(self) + ("?" + "&".join(options) if options else "")

    @property
    def host(self) -> str:
        return urlsplit(self.location).hostname or ""

    @property
    def port(self) -> int | None:
        return urlsplit(self.location).port

    @property
    def path(self) -> str:
        """The decoded path after the host, without the first slash."""
        return unquote(urlsplit(self.location).path).removeprefix("/")

    def credentials(self, user_variable: str, password_variable: str) -> tuple[str, str] | None:
        """User and password: of the address, else of environment variables; None without a user."""
        if self.user is not None:
            return self.user, self.password or os.environ.get(password_variable, "")
        user = os.environ.get(user_variable)
        return (user, os.environ.get(password_variable, "")) if user else None

    def error(self, message: Any, where: str = "") -> InputError:
        """An error at this address, with all secrets hidden.

        Servers and drivers may repeat what they were sent.
        """
        text = str(message).strip()
        for secret in self._secrets():
            text = text.replace(secret, _HIDDEN)
        return InputError(f"{self}{f', {where}' if where else ''}: {text}")

    def _secrets(self) -> list[str]:
        plain = [self.password, *self.parameters.values(), *map(os.environ.get, _SECRETS)]
        known = {form for secret in plain if secret for form in _forms(secret)}
        return sorted(known, key=len, reverse=True)


def _forms(secret: str) -> list[str]:
    """How a message may contain a secret: as it is, in a URL, and in quotes of several kinds."""
    escaped = secret.replace("\\", "\\\\")
    return [
        secret,
        quote(secret, safe=""),
        escaped.replace("'", "\\'"),
        escaped.replace('"', '\\"'),
        secret.replace("'", "''"),
        repr(secret)[1:-1],
    ]


def _without_user(scheme: str, location: str, form: str) -> tuple[str, str | None, str | None]:
    """A location without user and password, and both, decoded."""
    before, _, rest = location.partition("//")
    netloc, slash, path = rest.partition("/")
    who, at, host = netloc.rpartition("@")
    location = f"{before}//{host}{slash}{path}"
    try:
        parts = urlsplit(location)
        has_host = bool(parts.hostname)
        _ = parts.port  # raises if it is not a number
    except ValueError:
        raise _unreadable(scheme) from None
    if "@" in path or "#" in location:  # the / or # was part of a password
        raise _unreadable(scheme)
    if not has_host:
        raise InputError(f"{scheme}: the address has no host; expected {form}")
    if not at:
        return location, None, None
    user, colon, password = who.partition(":")
    return location, unquote(user), unquote(password) if colon else None


def _unreadable(scheme: str) -> InputError:
    """The error of an address that cannot be shown, because a password may be anywhere in it."""
    return InputError(
        f"{scheme}: the address cannot be read; percent-encode the special characters of user, "
        "password and options (@ is %40, / is %2F, # is %23, ? is %3F)"
    )
