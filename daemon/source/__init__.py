"""The source: the process that `mcpd push` becomes, which decodes video into a stream."""
