"""The C core: streams in shared memory and fused preparation. `mcpd.native._core` is the module."""
