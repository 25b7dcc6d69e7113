"""`llmrl-evaluate`: play a run's checkpoint for N seeded episodes; a table, and videos on request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.core.protocols import Agent
    from llmrl.evaluation.adapting import Plan
    from llmrl.evaluation.mechanisms import Imposed
    from llmrl.experiment.parts import Config, Parts


def parser() -> argparse.ArgumentParser:
    """The command line."""
    from llmrl.config.trusting import add_trust
    from llmrl.experiment.run_references import add_root

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
        help="tests of generalisation, a name or a .yaml file; the same as suite=<name>, beside which "
        "suite.<key>=<value> changes what it says (docs/generalisation.md)",
    )
    p.add_argument(
        "--episodes",
        type=int,
        default=None,
        help="episodes, rounded up to a multiple of the games (default 100; 10 on the Melting Pot engine); exactly so "
        "many where a player asks a language model (default play.episodes of the run)",
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
        help="an option of the environment that is to be another than in the run, e.g. engine=meltingpot; may be "
        "repeated; results go to <run>/evaluation_<changes>",
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


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Play and return the results that were saved.

    Raises:
        ConfigError, CheckpointError: the folder is no run, has no whole checkpoint, names code that is not trusted, or
            the mechanism is out of bounds.
        LLMError: a language model that plays does not answer, or its budget is used up.
    """
    from llmrl.config.env_overrides import check_same_players, folder_name, parsed
    from llmrl.config.input_digests import with_digests
    from llmrl.config.trusting import check_known
    from llmrl.core.errors import BudgetExhausted, ConfigError
    from llmrl.core.option_files import content, root
    from llmrl.core.seeding import Seeds
    from llmrl.display.console import print_rows
    from llmrl.evaluation.adapting import adapted, planned
    from llmrl.evaluation.evaluation_budget import announced, askers, refused, with_budget
    from llmrl.evaluation.mechanisms import asked_for, imposed, society
    from llmrl.evaluation.players import MODES, build_players, without_teacher
    from llmrl.evaluation.results import write_results
    from llmrl.evaluation.stage import NO_FILMS, Stage
    from llmrl.experiment.models import build_llm
    from llmrl.experiment.parts import build_parts, judged_on
    from llmrl.llms.usage import UNDERSTOOD, llm_summary
    from llmrl.run.content import RUN_KEY, read_config, saved_state
    from llmrl.run.files import inside
    from llmrl.run.metrics import FILE_NAME as METRICS_NAME
    from llmrl.run.metrics import place_of, read_metrics

    asked = asked_for(args.mechanism or ["last"])
    names, modes = args.policy.split(","), MODES if args.mode == "both" else (args.mode,)
    if args.others:
        raise ConfigError("several runs can be evaluated together in a suite only: suite=babyai_text")
    if args.episodes is not None and args.episodes < 1:
        raise ConfigError(f"--episodes={args.episodes}: at least 1 is needed")
    if args.calls is not None and args.calls < 0:
        raise ConfigError(f"--calls={args.calls}: at least 0 is needed")
    if len(asked) > 1 and len(names) * len(modes) > 1:
        raise ConfigError("several mechanisms are compared by one --policy in one --mode; name one of each")
    iteration, state = saved_state(args.run)
    config = read_config(args.run, args.trust)
    if "method" in config:
        raise ConfigError(f"{args.run} is a run of llmrl-finetune, which evaluates itself: see its evaluation.json")
    check_known(config, str(args.run / "config.yaml"))
    if not args.env:
        with_digests(config, only=["map_digest"])
    # A run computed on a cluster's GPU can be looked at anywhere.
    own = {**config, "hardware": {**config["hardware"], "device": "auto"}}
    config = whole = {**own, "env": parsed(args.env, config["env"])}
    if "teacher" not in names:
        config = without_teacher(config)
    plan = planned(args.adapt, len(asked) > 1, names, own)
    compared = [f"mechanism={','.join(x if x.isalpha() else f'[{x}]' for x in asked)}"] if len(asked) > 1 else []
    out = args.out or inside(args.run, folder_name([*args.env, *compared]))
    out.mkdir(parents=True, exist_ok=True)
    # The principal, whose language model might cost money, is left out; an agent that needs a model gets it.
    playing = {**(config if plan is None else whole), "principal": {"_target_": None}}
    llm = build_llm(with_budget(playing, args.calls), folder=out)
    parts = build_parts(config, llm, render=args.video, play_only=True)
    try:
        [agent] = parts.agents
        spec, history = parts.env.spec, state.get("history", [])
        mechanisms, context = imposed(asked, args.context, state, spec)
        place = society(history, config["design"].get("societies", 1))
        saved = state["agents"][place]
        if args.env and "policy" in saved:
            check_same_players(args.env, saved["policy"], agent.state_dict()["policy"])
        plan = _adapting(plan, args, agent, mechanisms)
        players = build_players(names, whole, parts)
        asking = askers(names, config, llm)
        play = config.get("play", content(root() / "train.yaml")["play"])  # a run that learnt has no such section
        usual = play["episodes"] if asking else 100 if spec.deterministic else 10
        wanted = usual if args.episodes is None else args.episodes
        if asking:
            steps = [n for n in (args.video_steps, spec.horizon) if n is not None]
            filmed = 0 if not args.video or names[0] not in asking else min(steps, default=None)
            rounds = len(modes) * len(mechanisms)
            print_rows("What is asked, at most", announced(asking, parts, wanted, rounds, filmed, len(mechanisms)))
        seeds = Seeds(args.seed).child("evaluate")
        states = [saved] * len(mechanisms)
        if plan is not None:
            _tell(plan, whole, parts, mechanisms)
            vectors = [each.vector for each in mechanisms if each.vector is not None]
            states = adapted(plan, own, llm, vectors, context, seeds, saved)
        judged, cost = judged_on(config, spec), config["design"]["spending_cost"]
        stage = Stage(args, parts, players, modes, mechanisms, context, judged, cost, seeds, out)
        films = stage.film(states) if args.video else NO_FILMS
        found = stage.play(states, wanted, bool(asking))
    except BudgetExhausted as error:
        raise refused(error) from error
    finally:
        parts.close()
    about = {
        "run": str(args.run),
        "checkpoint": iteration,
        "env": args.env,
        "seed": args.seed,
        "context": None if context is None else spec.contexts[context],
        "society": place if plan is None else None,
        "adapted": None if plan is None else plan.record(),
        "llm": None if llm is None else llm.label,
        "carried": stage.carried,
        **({} if llm is None else {k: v for k, v in llm_summary(llm).items() if k in UNDERSTOOD}),
    }
    logged = read_metrics(args.run / METRICS_NAME)[: state[RUN_KEY]["metrics_lines"]]
    return write_results(stage, about, found, films, place_of(logged)) | {"out": str(out)}


def _adapting(plan: Plan | None, args: argparse.Namespace, agent: Agent, mechanisms: Sequence[Imposed]) -> Plan | None:
    """The plan, if there is anything to adapt, and to adapt to."""
    from llmrl.core.errors import ConfigError

    if plan is None or (not agent.learns and args.adapt is None):
        return None
    if not agent.learns:
        raise ConfigError("--adapt: the agents of this run do not learn; leave it out")
    if any(each.vector is None for each in mechanisms):
        raise ConfigError("--adapt: nobody has proposed anything in this run; name a mechanism (--mechanism 0,2,0)")
    return plan


def _tell(plan: Plan, whole: Config, parts: Parts, mechanisms: Sequence[Imposed]) -> None:
    """Say what adapting will take: it is the longer part, and a teacher may ask a language model."""
    from llmrl.analysis.comparison import counted
    from llmrl.display.console import print_rows
    from llmrl.evaluation.evaluation_budget import askers
    from llmrl.llms.client import ChatClient

    n = len(mechanisms)
    words = ", ".join(each.title for each in mechanisms)
    long = f"{counted(plan.rounds, 'round')} of {counted(plan.games, 'game')}"
    sys.stderr.write(f"llmrl-evaluate: {long} to adapt to: {words}\n")
    if isinstance(parts.llm, ChatClient) and askers(["teacher"], whole, parts.llm):
        rows = [("model", parts.llm.label), ("episodes", f"{n * plan.rounds * plan.games:,} with a teacher")]
        print_rows("What adapting asks", [*rows, ("LLM calls", "unknown; --calls limits them")])


def main(argv: list[str] | None = None) -> None:
    """Console script."""
    from llmrl.core.terminal import guard_terminal

    guard_terminal()
    from llmrl.cli.suite import evaluate_suite, print_suite, split_words

    words, rest = split_words(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(rest)
    from llmrl.core.privacy import keep_private_like
    from llmrl.display.evaluations import print_evaluation
    from llmrl.run.ending import ending, ending_at_once

    kept = "tests of a suite that were over are written" if words or args.suite else "nothing of it is written"
    with ending("llmrl-evaluate"), ending_at_once("llmrl-evaluate", kept):
        from llmrl.experiment.run_references import run_folder_of, runs_of

        if words or args.suite:
            args.run, *args.others = [
                run for each in (args.run, *args.others) for run in runs_of(each, args.output_root)
            ]
        else:
            args.run = run_folder_of(args.run, args.output_root)
        keep_private_like(args.run)
        if words or args.suite:
            for results in evaluate_suite(args, words):
                print_suite(results)
        else:
            print_evaluation(evaluate(args))
