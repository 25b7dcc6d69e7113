"""`llmrl-export`: what runs left behind, for other programs: episodes for Inspect, metrics for Trackio."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llmrl.run.command_exit import interruptible


def parser() -> argparse.ArgumentParser:
    """The command line."""
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
    trackio = commands.add_parser("trackio", help="the metrics of finished runs as Trackio projects, one a name")
    trackio.add_argument("folder", type=Path, help="outputs, a sweep, or one run; run:<hash>, latest:<name>")
    trackio.add_argument(
        "--out", type=Path, default=None, help="folder of Trackio's databases (default: trackio under the output root)"
    )
    for each in (inspect, trackio):
        add_root(each)
    return p


def export_inspect(folder: Path, out: Path | None = None) -> tuple[Path, int]:
    """Write the Inspect log of a run; returns the file, and how many episodes are in it.

    Raises:
        LlmrlError: Inspect is not installed, there is no such run, or none of its steps were written down.
    """
    from llmrl.analysis.inspect_log import write_inspect_log
    from llmrl.analysis.runs import only_run, read_runs
    from llmrl.run.files import inside

    run = only_run(folder)
    [record] = read_runs(run)
    out = inside(run, "inspect", "episodes.eval") if out is None else out
    return out, write_inspect_log(record, out)


def export_trackio(folder: Path, out: Path | None = None) -> list[tuple[str, str]]:
    """Tell Trackio the finished runs in and under a folder; rows (run, what became of it).

    Raises:
        LlmrlError: Trackio is not installed, there is no such folder, or it has no finished run.
    """
    from llmrl.analysis.runs import read_runs
    from llmrl.core.errors import RunFolderError
    from llmrl.llms.transcript import Transcript
    from llmrl.run.episode_files import FILM, EpisodeVideos, KeptEpisodes
    from llmrl.run.sinks.retold import retell
    from llmrl.run.sinks.trackio import Trackio

    told = []
    for record in read_runs(folder):
        name = f"{record.name}/{record.group}/s{record.seed}"
        if record.state != "finished":
            told.append((name, f"left out: {record.state}"))
            continue
        videos = EpisodeVideos(KeptEpisodes(record.folder))
        sink = Trackio(None if out is None else str(out))
        rows = retell(record.folder, sink, {Transcript.TAG: Transcript(record.folder)}, {FILM: videos})
        told.append((name, f"{rows:,} rows"))
    if not any(what.endswith("rows") for _, what in told):
        raise RunFolderError(f"{folder} has no finished run; of runs that go on, loggers=[trackio] tells Trackio")
    return told


@interruptible("llmrl-export")
def main(argv: Sequence[str] | None = None) -> None:
    """Console script."""
    from llmrl.core.terminal import guard_terminal

    guard_terminal()
    args = parser().parse_args(argv)
    from llmrl.core.privacy import keep_private_like
    from llmrl.run.command_exit import ending

    with ending("llmrl-export"):
        from llmrl.display.console import print_line
        from llmrl.experiment.run_lookup import folder_of

        folder = folder_of(args.run if args.command == "inspect" else args.folder, args.output_root)
        keep_private_like(folder)
        if args.command == "inspect":
            out, episodes = export_inspect(folder, args.out)
            print_line(f"{episodes:,} episodes: {out}")
            print_line(f"Look at them: inspect view --log-dir {out.parent}")
        else:
            for name, what in export_trackio(folder, args.out):
                print_line(f"{name}: {what}")
            print_line("Look at them: TRACKIO_DIR=<folder of the databases> trackio show")


if __name__ == "__main__":
    main()
