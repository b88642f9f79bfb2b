"""The MCP adapter: asks a running mcpd what an assistant wants to know; see docs/mcp.md.

This file imports nothing, and `mcpd.mcp_adapter.manifest` only the standard library, so that a
process can answer for the adapter before the MCP SDK is loaded.
"""
