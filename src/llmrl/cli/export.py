"""`llmrl-export`: results of runs in formats of other programs: episodes as Inspect logs, trained language models."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llmrl.run.command_exit import handle_interrupt


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.experiment.run_lookup import add_root

    p = argparse.ArgumentParser(prog="llmrl-export", description=__doc__)
    commands = p.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="the episodes of a run as an Inspect log; `inspect view` shows it")
    inspect.add_argument("run", type=Path, help="a run folder; run:<hash>, latest:<name>")
    inspect.add_argument(
        "--out",
        type=Path,
        default=None,
        help="the file, .eval (compressed) or .json (default: <run>/inspect/episodes.eval)",
    )
    add_root(inspect)
    adapter = commands.add_parser("adapter", help="the trained adapter of a run in peft's format, or a complete model")
    adapter.add_argument("run", type=Path, help="a run folder; run:<hash>, latest:<name>")
    adapter.add_argument("--out", type=Path, default=None, help="the folder (default: <run>/adapter or <run>/merged)")
    adapter.add_argument(
        "--merge", action="store_true", help="write a complete model with tokenizer, with the adapter merged into it"
    )
    add_root(adapter)
    return p


def export_inspect(folder: Path, out: Path | None = None) -> tuple[Path, int]:
    """Write the Inspect log of a run; return its path and the number of its episodes.

    Raises:
        LlmrlError: Inspect is not installed, there is no such run, or none of its steps were written down.
    """
    from llmrl.analysis.inspect_log import write_inspect_log
    from llmrl.results.run_records import only_run, read_runs
    from llmrl.run.files import inside

    run = only_run(folder)
    [record] = read_runs(run)
    out = inside(run, "inspect", "episodes.eval") if out is None else out
    return out, write_inspect_log(record, out)


@handle_interrupt("llmrl-export")
def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script `llmrl-export`, with `argv` or else the process's arguments."""
    from llmrl.core.terminal import guard_terminal

    guard_terminal()
    args = parser().parse_args(argv)
    from llmrl.core.privacy import keep_private_like
    from llmrl.run.command_exit import exit_on_error

    with exit_on_error("llmrl-export"):
        from llmrl.display.console import print_line
        from llmrl.experiment.run_lookup import run_folder_of

        run = run_folder_of(args.run, args.output_root)
        keep_private_like(run)
        if args.command == "adapter":
            from llmrl.experiment.model_export import export_model

            print_line(f"model: {export_model(run, args.out, args.merge)}")
            return
        out, episodes = export_inspect(run, args.out)
        print_line(f"{episodes:,} episodes: {out}")
        print_line(f"Look at them: inspect view --log-dir {out.parent}")


if __name__ == "__main__":
    main()
