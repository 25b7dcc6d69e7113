"""`llmrl-evaluate`: play a run's checkpoint for N seeded episodes; a table, and videos on request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.cli.compose import Parts
    from llmrl.core.protocols import Policy
    from llmrl.core.seeding import Seeds
    from llmrl.learners.rollout import Episode


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="llmrl-evaluate", description=__doc__)
    p.add_argument("run", type=Path, help="run folder: outputs/<name>/<overrides>-<hash>/seed=<n>")
    p.add_argument("others", type=Path, nargs="*", help="further runs, with a suite: other seeds, other agents")
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
        default="last",
        help="'last' (the proposal the saved agents adapted to; of several tried at once the step's best), 'best' (the "
        "one that the run names so far, by the same agents), or numbers a,b,c",
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
    p.add_argument("--out", type=Path, default=None, help="where results go (default: <run>/evaluation)")
    return p


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Play and return the results that were saved.

    Raises:
        ConfigError, CheckpointError: the folder is no run, has no whole checkpoint, or the mechanism is out of bounds.
        LLMError: a language model that plays does not answer, or its budget is used up.
    """
    import numpy as np
    import yaml

    from llmrl.analysis.statistics import describe
    from llmrl.cli.asking import announced, askers, refused, with_budget
    from llmrl.cli.compose import build_llm, build_parts, judged_on
    from llmrl.cli.other_env import check_same_players, folder_name, parsed
    from llmrl.cli.outside import with_digests
    from llmrl.cli.players import MODES, build_players, without_teacher
    from llmrl.cli.report import print_rows
    from llmrl.core.errors import BudgetExhausted, ConfigError
    from llmrl.core.seeding import Seeds
    from llmrl.learners.rollout import Collector
    from llmrl.loops.playing import play_episodes
    from llmrl.loops.recording import recorded
    from llmrl.loops.welfare import episode_welfare, measures, summarize, summarize_welfare
    from llmrl.run.content import RUN_KEY, saved_state
    from llmrl.run.evaluation import write_evaluation
    from llmrl.run.files import write_json
    from llmrl.run.metrics import FILE_NAME as METRICS_NAME
    from llmrl.run.metrics import place_of, read_metrics

    if args.others:
        raise ConfigError("several runs can be evaluated together in a suite only: suite=babyai_text")
    if args.episodes is not None and args.episodes < 1:
        raise ConfigError(f"--episodes={args.episodes}: at least 1 is needed")
    if args.calls is not None and args.calls < 0:
        raise ConfigError(f"--calls={args.calls}: at least 0 is needed")
    iteration, state = saved_state(args.run)
    config = yaml.safe_load((args.run / "config.yaml").read_text())
    if "method" in config:
        raise ConfigError(f"{args.run} is a run of llmrl-finetune, which evaluates itself: see its evaluation.json")
    if not args.env:
        with_digests(config, only=["map_digest"])
    config["env"] = parsed(args.env, config["env"])
    # A run computed on a cluster's GPU can be looked at anywhere.
    config["hardware"] = {**config["hardware"], "device": "auto"}
    names, whole = args.policy.split(","), config
    if "teacher" not in names:
        config = without_teacher(config)
    # The principal, whose language model might cost money, is left out; an agent that needs a model gets it.
    out = args.out or args.run / folder_name(args.env)
    out.mkdir(parents=True, exist_ok=True)
    llm = build_llm(with_budget({**config, "principal": {"_target_": None}}, args.calls), folder=out)
    parts = build_parts(config, llm, render=args.video, play_only=True)
    try:
        [agent] = parts.agents
        env, spec, history = parts.env, parts.env.spec, state.get("history", [])
        chosen = state["best"][0] if history and args.mechanism == "best" else _last(history)
        mechanism = _mechanism(args.mechanism, chosen, spec)
        context = _context(args.context, chosen, spec)
        society = _society(history, config["design"].get("societies", 1))
        saved = state["agents"][society]
        if args.env and "policy" in saved:
            check_same_players(args.env, saved["policy"], agent.state_dict()["policy"])
        agent.load_state_dict(saved)
        carried: tuple[str, ...] = getattr(agent, "carried", ())
        players = build_players(names, whole, parts)
        seeds = Seeds(args.seed).child("evaluate")
        modes = MODES if args.mode == "both" else (args.mode,)
        asking = askers(names, config, llm)
        usual = config["play"]["episodes"] if asking else 100 if spec.deterministic else 10
        wanted = usual if args.episodes is None else args.episodes
        if asking:
            steps = [n for n in (args.video_steps, spec.horizon) if n is not None]
            filmed = 0 if not args.video or names[0] not in asking else min(steps, default=None)
            print_rows("What is asked, at most", announced(asking, parts, wanted, len(modes), filmed))

        def prepare() -> None:
            if mechanism is not None:
                env.set_mechanism(mechanism)
            if context is not None:
                env.set_context(context)

        files: list[Path] = []
        if args.video:
            prepare()
            files = _record(args, parts, players, seeds, out / "videos")
        played = {}
        for name, policy in players.items():
            for mode in modes:
                alone = len(players) * len(modes) == 1
                if name == "student" and carried:  # what a film or another mode left behind is none of its business
                    agent.load_state_dict(saved)
                kept = (out if alone else out / f"{name}_{mode}") if args.trajectories else None
                with recorded(env, policy, kept) as player:
                    collector, greedy = Collector(env, player, parts.device), mode == "deterministic"
                    played[name, mode] = play_episodes(collector, wanted, seeds, greedy, prepare, bool(asking))
    except BudgetExhausted as error:
        raise refused(error) from error
    finally:
        parts.close()
    judged = judged_on(config, spec)

    def columns(episodes: Sequence[Episode]) -> dict[str, np.ndarray]:
        base = np.array([episode.base_returns for episode in episodes])
        return {
            f"objective ({judged.name})": episode_welfare(episodes, judged, config["design"]["spending_cost"]),
            "return per agent": np.array([e.returns.mean() for e in episodes]),
            "base return per agent": base.mean(1),
            "length": np.array([float(e.length) for e in episodes]),
            # What one agent earns is all that there is to say of its welfare.
            **({f"welfare/{name}": x for name, x in measures(episodes, judged).items()} if spec.n_agents > 1 else {}),
            **{name: np.array([e.summaries[name] for e in episodes]) for name in spec.metrics},
        }

    measured = {player: columns(episodes) for player, episodes in played.items()}
    # A metric is NaN in episodes of which it says nothing.
    known = {p: {name: x[~np.isnan(x)] for name, x in m.items() if not np.isnan(x).all()} for p, m in measured.items()}
    tables = {
        (who, mode): {
            name: describe(x, seed=args.seed, independent=not (who == "student" and carried)) for name, x in m.items()
        }
        for (who, mode), m in known.items()
    }
    main_player, episodes = next(iter(played.items()))
    results = {
        "run": str(args.run),
        "checkpoint": iteration,
        "env": args.env,
        "episodes": len(episodes),
        "seed": args.seed,
        "mechanism": None
        if mechanism is None or spec.mechanism is None
        else dict(zip(spec.mechanism.names, mechanism.tolist(), strict=True)),
        "context": None if context is None else spec.contexts[context],
        "society": society,
        "llm": None if llm is None else llm.label,
        "carried": list(carried) if "student" in players else [],
        "players": [
            {"policy": name, "mode": mode, "table": tables[name, mode], "per_episode": _lists(measured[name, mode])}
            for name, mode in played
        ],
        "table": tables[main_player],
        "per_episode": _lists(measured[main_player]),
        "videos": [str(f) for f in files],
    }
    write_json(out / "results.json", results)
    rows = ["policy,mode,episode," + ",".join(measured[main_player])]
    for (name, mode), found in measured.items():
        n = len(played[name, mode])
        rows += [f"{name},{mode},{k}," + ",".join(f"{v[k]:.6g}" for v in found.values()) for k in range(n)]
    (out / "episodes.csv").write_text("\n".join(rows) + "\n")
    # Under the tags of the evaluations during training, where these would have their next point.
    scalars = {**summarize(episodes, "evaluation"), **summarize_welfare(episodes, judged)}
    scalars["evaluation/objective"] = float(measured[main_player][f"objective ({judged.name})"].mean())
    gif = next((file for file in files if file.name == "world.gif"), None)
    logged = read_metrics(args.run / METRICS_NAME)[: state[RUN_KEY]["metrics_lines"]]
    write_evaluation(out, place_of(logged), scalars, gif)
    return {**results, "out": str(out)}


def _lists(columns: dict[str, Any]) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in columns.items()}


def _record(
    args: argparse.Namespace, parts: Parts, players: dict[str, Policy], seeds: Seeds, folder: Path
) -> list[Path]:
    """Videos of one episode of the first player, with what it and a teacher that plays thought beside the picture."""
    import numpy as np

    from llmrl.cli.captions import Captioned
    from llmrl.envs.recorder import Recorder
    from llmrl.learners.rollout import Collector

    recorder = Recorder(parts.env)
    policy = next(iter(players.values()))
    captioned = Captioned(policy, recorder, parts.env.spec, None if parts.teacher is None else parts.teacher.policy)
    collector = Collector(recorder, captioned, parts.device)
    # The other games are not played: nobody looks at them.
    collector.reset(seeds.integer("video"), np.arange(parts.env.spec.n_envs) == 0)
    horizon = parts.env.spec.horizon or 1000
    left, generator = min(args.video_steps or horizon, horizon), seeds.torch("video")
    while left > 0:
        rollout = collector.collect(1, generator, learn=False, greedy=args.mode == "deterministic", restart=False)
        left = 0 if any(episode.game == 0 for episode in rollout.episodes) else left - 1
    return recorder.save(folder, args.fps)


def _last(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of the history with the highest objective of the last step."""
    rows = [row for row in history if row["step"] == history[-1]["step"]]
    return max(rows, key=lambda row: float(row["objective"]), default=None)


def _society(history: list[dict[str, Any]], several: int) -> int:
    """Which of the saved societies plays: of several that were tried side by side, that of the last step's best; of
    `several` under one proposal, the first, which is the one that the run's own seed gives."""
    row = _last(history)
    return 0 if row is None else int(row["candidate"]) * several


def _mechanism(choice: str, proposal: dict[str, Any] | None, spec: Any) -> Any:
    """The vector [d] to impose, or None where the environment has no mechanism or the run had no principal."""
    from llmrl.core.errors import ConfigError

    if spec.mechanism is None:
        return None
    if choice in ("last", "best"):
        return None if proposal is None else spec.mechanism.check(list(proposal["mechanism"].values()))
    try:
        numbers = [float(x) for x in choice.split(",")]
    except ValueError as error:
        raise ConfigError(f"--mechanism={choice}: give 'last', 'best' or numbers like 0.5,1,0") from error
    return spec.mechanism.check(numbers)


def _context(choice: int | None, proposal: dict[str, Any] | None, spec: Any) -> int | None:
    """The index of the context to play: the one asked for, else the proposal's own."""
    from llmrl.core.errors import ConfigError

    if not spec.contexts:
        return None
    if choice is None:
        return 0 if proposal is None else spec.contexts.index(proposal["context"])
    if not 0 <= choice < len(spec.contexts):
        listed = ", ".join(f"{i} = {name}" for i, name in enumerate(spec.contexts))
        raise ConfigError(f"--context={choice}: there is {listed}")
    return choice


def main(argv: list[str] | None = None) -> None:
    """Console script."""
    from llmrl.cli.suite import evaluate_suite, print_suite, split_words

    words, rest = split_words(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(rest)
    from llmrl.cli.command import EXIT_BUDGET, EXIT_FAILED
    from llmrl.cli.report import print_evaluation
    from llmrl.core.errors import BudgetExhausted, LlmrlError

    try:
        if words or args.suite:
            for results in evaluate_suite(args, words):
                print_suite(results)
        else:
            print_evaluation(evaluate(args))
    except LlmrlError as error:
        sys.stderr.write(f"llmrl-evaluate: {error}\n")
        raise SystemExit(EXIT_BUDGET if isinstance(error, BudgetExhausted) else EXIT_FAILED) from error
