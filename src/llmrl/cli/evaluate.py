"""`llmrl-evaluate`: play a run's checkpoint for N seeded episodes; a table, and videos on request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.run.command_exit import handle_interrupt

if TYPE_CHECKING:
    from llmrl.evaluation.settings import EvaluationSettings


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.config.trust_options import add_trust
    from llmrl.experiment.run_lookup import add_root

    p = argparse.ArgumentParser(prog="llmrl-evaluate", description=__doc__)
    p.add_argument(
        "run",
        type=Path,
        help="a run: its folder, outputs/<name>/<label>-<hash>/s<seed>, a folder around a single one, "
        "run:<hash>[/s<seed>] or latest:<name>; with a suite all runs in a folder",
    )
    p.add_argument("others", type=Path, nargs="*", help="further runs, with a suite: other seeds, other agents")
    add_root(p)
    p.add_argument(
        "--suite",
        default=None,
        help="tests of generalization, a name or a .yaml file; the same as suite=<name>; suite.<key>=<value> changes "
        "its settings (docs/generalization.md)",
    )
    p.add_argument(
        "--episodes",
        type=int,
        default=None,
        help="episodes, rounded up to a multiple of the games (default 100; 10 on the Melting Pot engine); not rounded "
        "if a player uses a language model (default play.episodes of the run)",
    )
    p.add_argument(
        "--policy",
        default="student",
        help="who plays, several with commas: student (the run's agents), teacher (the run's), oracle (a scripted "
        "planner, where the environment has one), bot (the environment's own expert, where it has one), random "
        "(default student); in a suite student, bot and random",
    )
    p.add_argument(
        "--mode",
        choices=("stochastic", "deterministic", "both"),
        default="stochastic",
        help="actions are drawn from the policy, or the likeliest is taken (default stochastic)",
    )
    p.add_argument("--seed", type=int, default=1000, help="seed of the evaluation episodes (default 1000)")
    p.add_argument(
        "--mechanism",
        action="append",
        help="'last' (the proposal the saved agents adapted to; of several tried at once the step's best), 'best' (the "
        "one that the run names so far), 'none' (all numbers 0), or numbers a,b,c (default last). Several are "
        "compared: words with commas (none,best), and --mechanism may be repeated; results go to "
        "<run>/evaluation_mechanism_<those>",
    )
    p.add_argument(
        "--adapt",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let a society adapt to each mechanism first, as in a principal's step (default: where several mechanisms "
        "are compared); else the agents play that the run saved",
    )
    p.add_argument(
        "--context",
        type=int,
        default=None,
        help="context index for contextual environments (default: the proposal's own)",
    )
    p.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a changed option of the environment, e.g. engine=meltingpot; may be repeated; results go to "
        "<run>/evaluation_<changes>",
    )
    p.add_argument("--trajectories", action="store_true", help="keep every step as arrays, trajectories/<k>.npz")
    p.add_argument("--video", action="store_true", help="record one episode: world and each agent's view, MP4 and GIF")
    p.add_argument("--video-steps", type=int, default=None, help="steps to record (default: the whole episode)")
    p.add_argument("--fps", type=int, default=20, help="frames per second of videos (default 20)")
    p.add_argument(
        "--calls",
        type=int,
        default=None,
        help="replies of a language model that evaluations of this run may pay for, all together (default llm.budget "
        "of the run)",
    )
    add_trust(p)
    p.add_argument("--out", type=Path, default=None, help="where results go (default: <run>/evaluation)")
    return p


def settings_of(args: argparse.Namespace) -> EvaluationSettings:
    """Return the settings of a parsed command line.

    Raises:
        ConfigError: a number is out of range.
    """
    from llmrl.evaluation.settings import EvaluationSettings

    same = ("episodes", "mode", "seed", "adapt", "context", "env", "trajectories", "video", "video_steps", "fps")
    return EvaluationSettings(
        policies=args.policy.split(","),
        mechanisms=args.mechanism or ["last"],
        trusted=args.trust,
        calls=args.calls,
        out=args.out,
        **{name: getattr(args, name) for name in same},
    )


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate the run of a parsed command line; return the results as they were saved.

    Raises:
        LlmrlError: several runs without a suite, or as `llmrl.evaluation.evaluate_run.evaluate_run`.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.evaluation.evaluate_run import evaluate_run

    if args.others:
        raise ConfigError("several runs can only be evaluated by a suite; add e.g. suite=babyai_text")
    return evaluate_run(args.run, settings_of(args), show)


def show(text: str, rows: Sequence[tuple[str, str]] = ()) -> None:
    """Print a message of a running evaluation: tables to standard output, lines to standard error."""
    from llmrl.display.console import print_rows

    if rows:
        print_rows(text, rows)
    else:
        sys.stderr.write(f"llmrl-evaluate: {text}\n")


_WORDS = ("suite=", "suite.")


def split_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command line that are about the suite, without their prefix `suite.`, and all others."""
    suite_words = [word for word in argv if word.startswith(_WORDS)]
    return [word.removeprefix("suite.") for word in suite_words], [word for word in argv if word not in suite_words]


def which_suite(option: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the suite that `--suite` or a word names, and the words that change it, `key=value`.

    Raises:
        ConfigError: no suite is named.
    """
    from llmrl.core.errors import ConfigError

    suite_names = [word.removeprefix("suite=") for word in words if word.startswith("suite=")]
    if option is None and not suite_names:
        raise ConfigError("suite.<key>=<value> needs a suite; add suite=<name>")
    return option or suite_names[-1], [word for word in words if not word.startswith("suite=")]


def print_suite(results: Mapping[str, Any]) -> None:
    """Print the table of a suite and the place of its files."""
    from llmrl.display.console import print_line, print_table, terminal
    from llmrl.evaluation.suite_results import suite_table

    table = suite_table(results)
    print_table(table.caption, table.columns, table.rows, table.sides)
    for note in table.notes:
        print_line(note)
    files = "results.json, table.csv, table.md"
    terminal().print(f"Saved in {results['out']}: {files}", soft_wrap=True)


@handle_interrupt("llmrl-evaluate")
def main(argv: list[str] | None = None) -> None:
    """Run the console script `llmrl-evaluate`, with `argv` or else the process's arguments."""
    from llmrl.core.terminal import guard_terminal

    guard_terminal()

    words, rest = split_words(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(rest)
    from llmrl.core.privacy import keep_private_like
    from llmrl.display.evaluation_tables import print_evaluation
    from llmrl.run.command_exit import exit_on_error, exit_on_signal

    note = "tests of a suite that were over are written" if words or args.suite else "nothing of it is written"
    with exit_on_error("llmrl-evaluate"), exit_on_signal("llmrl-evaluate", note):
        from llmrl.experiment.run_lookup import run_folder_of, runs_of

        if words or args.suite:
            args.run, *args.others = [
                run for argument in (args.run, *args.others) for run in runs_of(argument, args.output_root)
            ]
        else:
            args.run = run_folder_of(args.run, args.output_root)
        keep_private_like(args.run)
        if words or args.suite:
            from llmrl.evaluation.evaluate_suite import evaluate_suite

            suite, changes = which_suite(args.suite, words)
            for results in evaluate_suite([args.run, *args.others], suite, settings_of(args), show, changes):
                print_suite(results)
        else:
            print_evaluation(evaluate(args))
