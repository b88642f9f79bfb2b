"""The `mcpd` command: one file per subcommand, each loaded only when it is used."""
