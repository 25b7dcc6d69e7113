"""`llmrl-evaluate <run> suite=<name>`: a run's agent in every test of a suite, as a table and a figure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.cli.compose import Parts
    from llmrl.core.protocols import Policy, VecEnv
    from llmrl.loops.suite import Suite, SuiteTest

PLAYERS = ("student", "random", "bot")
_WORDS = ("suite=", "suite.")


def split_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words that are about the suite, all others) of a command line; the former as `key=value` without `suite.`."""
    own = [word for word in argv if word.startswith(_WORDS)]
    return [word.removeprefix("suite.") for word in own], [word for word in argv if word not in own]


def evaluate_suite(args: argparse.Namespace, words: Sequence[str]) -> list[dict[str, Any]]:
    """Play a suite with one run, or with several of the same experiment, and write what was found.

    Args:
        args: of `llmrl-evaluate`.
        words: `suite=<name>` or not, and `key=value` for keys of the suite.

    Returns:
        What was written: of each run, and of all together where there are several, with `out`, its folder.

    Raises:
        LlmrlError: a folder is no run, the suite makes no sense, is for other runs, or none of its tests can be played.
    """
    from llmrl.cli.report import terminal
    from llmrl.core.errors import ConfigError

    name, content = _content(args, words)
    refused = [f"--{o}" for o in ("video", "context") if getattr(args, o) not in (None, False)]
    if refused or args.mode == "both":
        raise ConfigError(f"{refused[0] if refused else '--mode=both'} cannot be used with a suite")
    runs = [args.run, *args.others]
    found: list[dict[str, Any]] = []
    for run in runs:
        if len(runs) > 1:
            terminal().print(f"Run {len(found) + 1} of {len(runs)}: {run}", soft_wrap=True)
        out = (args.out / str(len(found)) if len(runs) > 1 else args.out) if args.out else run / "evaluation"
        found.append(_evaluate_run(run, args, name, content, out / f"suite_{name}"))
    if len(found) > 1:
        from llmrl.analysis.suite import over_runs, write_suite

        together = over_runs(found)
        folder = (args.out or runs[0].parent) / f"suite_{name}"
        write_suite(together, folder)
        found.append({**together, "out": str(folder)})
    return found


def _content(args: argparse.Namespace, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The suite's name, and what it says with what was typed put over it."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from llmrl.cli.offers import options
    from llmrl.core.errors import ConfigError

    chosen = [word.removeprefix("suite=") for word in words if word.startswith("suite=")]
    which = args.suite or (chosen[-1] if chosen else None)
    if which is None:
        raise ConfigError("which suite? give suite=<name> beside suite.<key>=<value>")
    own = Path(which).expanduser()
    shipped = options("suite")
    if which in shipped:
        name, content = which, shipped[which]
    elif which.endswith((".yaml", ".yml")):
        try:
            name, content = own.stem, yaml.safe_load(own.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"suite={which} cannot be read: {error}") from error
    else:
        raise ConfigError(f"suite={which}: there is {', '.join(shipped)}, or a file ending in .yaml")
    if not isinstance(content, dict):
        raise ConfigError(f"suite={which} must be keys and values, such as tests: and episodes:")
    typed = [word for word in words if not word.startswith("suite=")]
    if args.episodes is not None:
        typed.append(f"episodes={args.episodes}")
    try:
        merged = OmegaConf.merge(OmegaConf.create(content), OmegaConf.from_dotlist(typed))
        plain = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"suite: {error}") from error
    assert isinstance(plain, dict)
    return name, {str(key): value for key, value in plain.items()}


def _evaluate_run(
    run: Path, args: argparse.Namespace, name: str, content: Mapping[str, Any], out: Path
) -> dict[str, Any]:
    import yaml

    from llmrl.analysis.suite import summarized, write_suite
    from llmrl.cli.asking import announced, askers, refused, with_budget
    from llmrl.cli.compose import build_llm, build_parts
    from llmrl.cli.players import without_teacher
    from llmrl.cli.report import print_rows
    from llmrl.core.errors import BudgetExhausted, ConfigError
    from llmrl.loops.suite import suite_of
    from llmrl.run.content import saved_state

    names = args.policy.split(",")
    if unknown := [each for each in names if each not in PLAYERS]:
        raise ConfigError(f"--policy={unknown[0]}: a suite is played by {', '.join(PLAYERS)}, several with commas")
    iteration, state = saved_state(run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    if "method" in config:
        raise ConfigError(f"{run} is a run of llmrl-finetune, which has no agent to be tested")
    # A run computed on a cluster's GPU can be looked at anywhere.
    config["hardware"] = {**config["hardware"], "device": "auto"}
    config = without_teacher(config)
    suite = suite_of(name, content, config["env"])
    if content.get("n_envs") is not None:
        config = {**config, "env": {**config["env"], "n_envs": content["n_envs"]}}
    out.mkdir(parents=True, exist_ok=True)
    llm = build_llm(with_budget({**config, "principal": {"_target_": None}}, args.calls), folder=out)
    parts = build_parts(config, llm, render=False, play_only=True)
    results: dict[str, Any] = {
        "suite": name,
        "runs": [str(run)],
        "checkpoint": iteration,
        "seed": args.seed,
        "mode": args.mode,
        "episodes": suite.episodes,
        "intervals": "95%, Wilson, of one agent's episodes; of the mean over kinds, Zou and Donner",
        "llm": None if llm is None else llm.label,
        "players": names,
        "tests": [],
    }
    try:
        [agent] = parts.agents
        agent.load_state_dict(state["agents"][0])
        if asking := askers(names, config, llm):
            wanted = suite.episodes * sum(len(test.environments()) for test in suite.tests)
            print_rows("What is asked, at most", announced(asking, parts, wanted, 1, 0))
        for i, test in enumerate(suite.tests):
            results["tests"].append(summarized(_play_test(test, suite, parts, config, args, names, out)))
            _say(i + 1, len(suite.tests), results["tests"][-1])
            write_suite(results, out, figure=False)
    except BudgetExhausted as error:
        raise refused(error) from error
    finally:
        parts.close()
    if not any(player for test in results["tests"] for player in test["players"].values()):
        reasons = next(iter(results["tests"]))["refused"]
        raise ConfigError(f"suite={name}: no test could be played; {next(iter(reasons.values()))}")
    write_suite(results, out)
    return {**results, "out": str(out)}


def _play_test(
    test: SuiteTest,
    suite: Suite,
    parts: Parts,
    config: Mapping[str, Any],
    args: argparse.Namespace,
    names: Sequence[str],
    out: Path,
) -> dict[str, Any]:
    """What each player did in each kind, or why it could not: the error that says so."""
    from llmrl.cli.build import Builder
    from llmrl.core.errors import ConfigError
    from llmrl.core.seeding import Seeds
    from llmrl.loops.suite import play_kind

    played: dict[str, dict[str, Any]] = {name: {} for name in names}
    refused: dict[str, str] = {}
    for kind, node in test.environments():
        seeds = Seeds(args.seed).child("suite").child(test.name).child(kind)
        try:
            env: VecEnv = Builder({"seeds": seeds.child("env")}, config["trusted_modules"]).build(node, "env")
        except ConfigError as error:
            refused |= {name: str(error) for name in names}
            break
        try:
            for name in [name for name in names if name not in refused]:
                folder = out / "steps" / test.name / kind / name if args.trajectories else None
                try:
                    policy = _player(name, parts, env)
                    greedy = args.mode == "deterministic"
                    # All players have the same games.
                    games = seeds.child("episodes")
                    played[name][kind] = play_kind(env, policy, parts.device, suite, games, greedy, folder)
                except ConfigError as error:
                    refused[name] = str(error)
        finally:
            env.close()
    about = {"name": test.name, "title": test.title, "what": test.what, "env": dict(test.env)}
    return {**about, "players": {n: None if n in refused else played[n] for n in names}, "refused": refused}


def _player(name: str, parts: Parts, env: VecEnv) -> Policy:
    from llmrl.loops.suite import fit

    if name == "random":
        from llmrl.agents.random_agent import RandomPolicy

        return RandomPolicy(env.spec)
    if name == "bot":
        from llmrl.agents.bot_agent import BotPolicy

        return BotPolicy(env.spec)
    [agent] = parts.agents
    fit(agent, parts.env.spec, env.spec)
    return agent.policy


def _say(done: int, of: int, test: Mapping[str, Any]) -> None:
    """How far a long evaluation is."""
    told = [
        f"{name} {test['refused'][name]}" if found is None else f"{name} {found['success']:.2f}"
        for name, found in test["players"].items()
    ]
    sys.stderr.write(f"llmrl-evaluate: {done} of {of}, {test['title']}: {', '.join(told)}\n")


def print_suite(results: Mapping[str, Any]) -> None:
    """The table of a suite, and where the rest is."""
    from llmrl.analysis.suite import suite_table
    from llmrl.cli.report import print_table, terminal

    table = suite_table(results)
    print_table(table.caption, table.columns, table.rows, table.sides)
    for note in table.notes:
        print(note)
    files = "results.json, table.csv, table.md, suite.png"
    terminal().print(f"Saved in {results['out']}: {files}", soft_wrap=True)
