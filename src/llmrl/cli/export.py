"""`llmrl-export`: write tables, trained agents and trained models of runs in formats of other programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llmrl.run.command_exit import console_command

TABLE_BY_ARGUMENT = {
    "runs": "runs",
    "metrics": "metrics",
    "proposals": "proposals",
    "episodes": "episodes",
    "calls": "llm_calls",
}
"""Tables, as attributes of the object that `llmrl.load` returns, by the value of `--what`."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.config.permissions import add_trust_option
    from llmrl.experiment.run_lookup import add_output_root_option

    parser = argparse.ArgumentParser(prog="llmrl-export", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    adapter = commands.add_parser("adapter", help="the trained adapter of a run in peft's format, or a complete model")
    adapter.add_argument("run", type=Path, help="a run folder; run:<hash>, latest:<name>")
    adapter.add_argument("--out", type=Path, default=None, help="the folder (default: <run>/adapter or <run>/merged)")
    adapter.add_argument(
        "--merge", action="store_true", help="write a complete model with tokenizer, with the adapter merged into it"
    )
    add_trust_option(adapter)
    add_output_root_option(adapter)
    agent = commands.add_parser("agent", help="the trained agent of a run as safetensors and a description in JSON")
    agent.add_argument("run", type=Path, help="a run folder; run:<hash>, latest:<name>")
    agent.add_argument("--out", type=Path, default=None, help="the folder (default: <run>/agent)")
    add_trust_option(agent)
    add_output_root_option(agent)
    table = commands.add_parser("table", help="a table of runs as CSV or Parquet")
    table.add_argument("folder", type=Path, help="a folder of runs at any level, or a run; run:<hash>, latest:<name>")
    table.add_argument("--what", choices=TABLE_BY_ARGUMENT, default="runs", help="rows of the table (default runs)")
    table.add_argument("--format", choices=("csv", "parquet"), default="csv", help="format of the file (default csv)")
    table.add_argument("--out", type=Path, default=None, help="the file (default: <folder>/tables/<what>.<format>)")
    add_output_root_option(table)
    return parser


@console_command("llmrl-export")
def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script `llmrl-export`, with `argv` or else the process's arguments."""
    args = build_parser().parse_args(argv)
    from llmrl.core.privacy import restrict_permissions_like
    from llmrl.display.console import print_line
    from llmrl.experiment.run_lookup import resolve_folder, resolve_run_folder

    if args.command == "table":
        from llmrl.api.dataframes import write_frame
        from llmrl.api.results import load

        folder = resolve_folder(args.folder, args.output_root)
        restrict_permissions_like(folder)
        frame = getattr(load(folder), TABLE_BY_ARGUMENT[args.what])
        out = args.out or folder / "tables" / f"{args.what}.{args.format}"
        write_frame(frame, out, args.format)
        print_line(f"{len(frame):,} rows: {out}")
        return
    run = resolve_run_folder(args.run, args.output_root)
    restrict_permissions_like(run)
    if args.command == "adapter":
        from llmrl.experiment.model_export import export_model

        print_line(f"model: {export_model(run, args.out, args.merge, args.trust)}")
    else:
        from llmrl.api.trained_agents import export_agent

        print_line(f"agent: {' and '.join(map(str, export_agent(run, args.out, args.trust)))}")


if __name__ == "__main__":
    main()
