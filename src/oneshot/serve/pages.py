"""The files of the web page, and the API reference as a page without scripts."""

import json
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from fastapi.responses import Response

_SCRIPTS = ("page", "answers", "facts", "drawing", "combobox", "service", "dom")
PAGE = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "reference.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **{f"{name}.js": "text/javascript; charset=utf-8" for name in _SCRIPTS},
}


@cache
def _content(name: str) -> bytes:
    return (files("oneshot.serve") / "page" / name).read_bytes()


def page_file(name: str) -> Response:
    """The response with a file of the page."""
    return Response(_content(name), media_type=PAGE[name])


def reference_page(description: dict[str, Any]) -> str:
    """A page with all routes and schemas of an OpenAPI description."""
    info = description["info"]
    schemas = description.get("components", {}).get("schemas", {})
    routes = [
        (path, method, route)
        for path, methods in description["paths"].items()
        for method, route in methods.items()
    ]
    contents = "".join(
        f'<li><a href="#{_anchor(m, p)}"><b>{m.upper()}</b> {escape(p)}</a></li>'
        for p, m, _ in routes
    )
    body = "".join(_route(path, method, route, schemas) for path, method, route in routes)
    shapes = "".join(_shape(name, schema) for name, schema in sorted(schemas.items()))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}: reference</title>"
        '<link rel="icon" href="page/icon.svg"><link rel="stylesheet" href="page/reference.css">'
        f"</head><body><header><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info.get('description', ''))}</p>"
        '<p><a href="./">Web page</a> · <a href="openapi.json">OpenAPI document</a> · '
        '<a href="metrics">metrics</a></p></header>'
        f'<nav aria-label="Routes"><ul>{contents}</ul></nav><main>{body}'
        f'<section><h2 id="shapes">Schemas</h2>{shapes}</section></main></body></html>\n'
    )


def _sentence(text: str) -> str:
    return text if text.endswith(("?", ".", "!")) else f"{text}."


def _route(path: str, method: str, route: dict[str, Any], schemas: dict[str, Any]) -> str:
    summary = _sentence(route.get("summary", ""))
    parts = [
        f'<section><h2 id="{_anchor(method, path)}"><b>{method.upper()}</b> {escape(path)}</h2>',
        f"<p>{escape(summary)} {escape(route.get('description', ''))}</p>",
    ]
    parameters = route.get("parameters", [])
    if parameters:
        rows = "".join(
            f"<tr><th scope=row><code>{escape(p['name'])}</code></th><td>{_type(p['schema'])}</td>"
            f"<td>{escape(p.get('description', ''))}</td></tr>"
            for p in parameters
        )
        parts.append(f"<table><caption>Parameters</caption>{rows}</table>")
    sent = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    if sent:
        example = json.dumps(_example(sent["schema"], schemas), ensure_ascii=False)
        command = f"curl -X {method.upper()} http://127.0.0.1:8000{path} \\\n  "
        command += f"-H 'Content-Type: application/json' \\\n  -d '{example}'"
        parts.append(f"<p>Body: {_type(sent['schema'])}</p><pre tabindex=0>{escape(command)}</pre>")
    rows = "".join(
        f"<tr><th scope=row>{status}</th><td>{_media(answer)}</td></tr>"
        for status, answer in route["responses"].items()
    )
    parts.append(f"<table><caption>Answers</caption>{rows}</table></section>")
    return "".join(parts)


def _media(answer: dict[str, Any]) -> str:
    types = [_type(content["schema"]) for content in answer.get("content", {}).values()]
    return ", ".join(types) or escape(answer["description"])


def _shape(name: str, schema: dict[str, Any]) -> str:
    needed = schema.get("required", [])
    rows = "".join(
        f"<tr><th scope=row><code>{escape(key)}</code></th><td>{_type(value)}"
        f"{'' if key in needed else ', optional'}</td>"
        f"<td>{escape(value.get('description', ''))}</td></tr>"
        for key, value in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", ""))
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{about}</p><table>{rows}</table>'


def _type(schema: dict[str, Any]) -> str:
    """A short description of a schema, with a link if it has a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema)}"
    default = f", default {escape(json.dumps(schema['default']))}" if "default" in schema else ""
    return escape(schema.get("type", "anything")) + _bounds(schema) + default


def _bounds(schema: dict[str, Any]) -> str:
    found = list(_bound_texts(schema))
    return f" ({', '.join(found)})" if found else ""


def _bound_texts(schema: dict[str, Any]) -> Iterator[str]:
    for least, most, what in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", ""),
    ):
        if least in schema and schema[least] == schema.get(most):
            yield f"{schema[least]}{what}"
        elif least in schema or most in schema:
            yield f"{schema.get(least, 0)} to {schema.get(most, '∞')}{what}"


def _example(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """An example of a schema, with its required fields."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
    if schema.get("examples"):
        return schema["examples"][0]
    if schema.get("type") == "object":
        properties, needed = schema.get("properties", {}), schema.get("required", [])
        return {key: _example(properties[key], schemas) for key in needed}
    if schema.get("type") == "array":
        return [_example(schema["items"], schemas)] * schema.get("minItems", 1)
    return {"string": "…", "integer": 1, "number": 1.0, "boolean": True}.get(schema.get("type", ""))


def _anchor(method: str, path: str) -> str:
    letters = (letter if letter.isalnum() else "-" for letter in path)
    return method + "".join(letters)
