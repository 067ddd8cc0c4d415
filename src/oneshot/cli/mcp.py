"""The command that serves a run to language models."""

from typing import Annotated

import typer

from oneshot.cli.options import (
    TOKEN,
    WRITE_TOKEN,
    AllowHostOption,
    DeviceOption,
    HostOption,
    JsonOption,
    PortOption,
    RunArgument,
    SeedOption,
    ServedGraphOption,
    SetOption,
    TimeoutOption,
    TokenFileOption,
    WriteTokenFileOption,
    bearer_token,
    load_data,
    note_open_access,
)
from oneshot.system import console


def mcp(
    run: RunArgument,
    http: Annotated[
        bool, typer.Option("--http", help="Serve over HTTP instead of stdin and stdout.")
    ] = False,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allow_host: AllowHostOption = None,
    token_file: TokenFileOption = None,
    write_token_file: WriteTokenFileOption = None,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="Offer tools that add and remove facts permanently."),
    ] = False,
    timeout: TimeoutOption = 30.0,
    data: ServedGraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Serve a run to language models, as a server of the Model Context Protocol (MCP).

    Without --http, the client starts this command and talks to it over stdin and stdout.
    """
    from oneshot.errors import require
    from oneshot.system.devices import find_device

    for package in ("fastapi", "uvicorn", "prometheus_client", "mcp", "mcp_types"):
        require(package, "mcp", "an MCP server")
    from oneshot.serve.mcp.server import PATH, guarded
    from oneshot.serve.mcp.stdio import run_stdio
    from oneshot.serve.server import run_server
    from oneshot.serve.settings import ServeSettings

    torch_device = find_device(device)
    chosen = ServeSettings(
        token=bearer_token(token_file, TOKEN),
        write_token=bearer_token(write_token_file, WRITE_TOKEN),
        read_only=not allow_changes,
        timeout=timeout,
        hosts=tuple(allow_host or ()),
    )

    def announce(address: str) -> None:
        if json:
            console.print_json({"url": address + PATH, "run": str(run)})
        else:
            console.note(f"{run} is served on {address}{PATH} (stop with Ctrl+C)")

    def announce_stdio() -> None:
        console.note(f"{run} is served on stdin and stdout (stop with Ctrl+C)")

    graph = None if data is None else load_data(data, seed).graph
    if not http:
        run_stdio(run, chosen, torch_device, settings or (), announce_stdio, graph)
        return
    can_change = not chosen.read_only and chosen.write_token is None
    note_open_access(host, chosen.token, can_change)
    run_server(run, host, port, chosen, torch_device, settings or (), announce, graph, guarded)
