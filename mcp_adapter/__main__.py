"""`python -P -m mcpd.mcp_adapter`: the relay, as `mcpd mcp` starts it by a shorter way."""

from __future__ import annotations

from mcpd.mcp_adapter.relay import main

if __name__ == "__main__":
    main()
