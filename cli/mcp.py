"""`mcpd mcp`: this process becomes the relay to the MCP server."""

from __future__ import annotations

import click

from mcpd.cli.launch import exec_relay
from mcpd.cli.options import Invocation, json_option, pass_invocation, socket_option


@click.command()
@json_option("Accepted for uniformity: MCP is JSON already.")
@socket_option
@pass_invocation
def command(invocation: Invocation) -> None:
    """Serve MCP on standard input and output.

    For an assistant such as Claude Desktop, which starts it by itself. It works with the daemon
    down too: its tools then answer that `mcpd start` is needed.

    \b
    Example, in claude_desktop_config.json:
      {"mcpServers": {"mcpd": {"command": "mcpd", "args": ["mcp"]}}}
    """
    exec_relay(socket=invocation.socket)
