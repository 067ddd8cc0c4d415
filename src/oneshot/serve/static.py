"""The files of the page, read once from the package."""

from functools import cache
from importlib.resources import files

from fastapi.responses import Response

PAGE = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "reference.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "drawing.js": "text/javascript; charset=utf-8",
    "choosing.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def _content(name: str) -> bytes:
    return (files("oneshot.serve") / "page" / name).read_bytes()


def page_file(name: str) -> Response:
    """A file of the page as a response."""
    return Response(_content(name), media_type=PAGE[name])
