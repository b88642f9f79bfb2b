"""`mcpd demo`: the whole way of a frame, shown and measured on a clip with known true rectangles."""
