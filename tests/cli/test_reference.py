"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

from pathlib import Path

from mcpd.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_page_is_the_commands_own_help() -> None:
    # Word for word; releases of click break lines differently.
    written, said = PAGE.read_text().split(), reference().split()
    assert written == said, "run: python -m mcpd.cli.reference > docs/cli.md"


def test_page_names_every_command_and_subcommand() -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    assert "### mcpd push" in headings
    assert "### mcpd models fetch" in headings
