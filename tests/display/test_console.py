"""Printed links."""

import io

from rich.console import Console

from llmrl.display import console

ADDRESS = "http://localhost:6006/?runFilter=%5E(.*%2F)%3Fmean%2F#timeseries"


def test_terminal_links_are_clickable(monkeypatch):
    """Check that the address is part of the control sequence (OSC 8), not of the visible text."""
    output = io.StringIO()
    monkeypatch.setattr(console, "terminal", lambda: Console(file=output, force_terminal=True, width=40))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    console.print_link("Means", ADDRESS)
    opening, visible, closing = output.getvalue().split("\x1b\\")
    assert opening.startswith("\x1b]8;") and opening.endswith(ADDRESS)
    assert "Means" in visible and ADDRESS not in visible and not closing.strip()


def test_file_links_are_complete(capsys):
    console.print_link("Means", ADDRESS)
    assert capsys.readouterr().out == f"Means: {ADDRESS}\n"
