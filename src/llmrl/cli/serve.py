"""`llmrl-serve`: an environment as a server with the protocol of OpenEnv."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.run.command_exit import console_command

if TYPE_CHECKING:
    import numpy as np

    from llmrl.core.spaces import EnvSpec

_SHUTDOWN_SECONDS = 5
"""Maximum number of seconds after a signal in which open requests may finish."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.experiment.run_lookup import add_output_root_option

    parser = argparse.ArgumentParser(prog="llmrl-serve", description=__doc__)
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="KEY=VALUE",
        help="the environment, as for llmrl-train: env=harvest env.horizon=200; principal=<run>: a run folder, "
        "run:<hash> or latest:<name>, whose recommended mechanism is set in all games",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1, local clients)")
    parser.add_argument("--port", type=int, default=8000, help="port, 0 to 65535; 0: any free one (default 8000)")
    parser.add_argument("--sessions", type=int, default=64, help="concurrent sessions, a game each, >= 1 (default 64)")
    timeout_help = "idle time after which a session ends, > 0 (default 600)"
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help=timeout_help)
    add_output_root_option(parser)
    return parser


@console_command("llmrl-serve")
def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script `llmrl-serve`, with `argv` or else the process's arguments, until a signal."""
    args = build_parser().parse_args(argv)
    from llmrl.api.environments import build_env_from_config
    from llmrl.api.openenv_server import make_app
    from llmrl.core.errors import ConfigError
    from llmrl.core.protocols import VecEnv
    from llmrl.experiment.experiment import Experiment

    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port={args.port} must be a whole number from 0 to 65535")
    if args.sessions < 1:
        raise ConfigError(f"--sessions={args.sessions} must be a whole number >= 1")
    if not args.timeout > 0:
        raise ConfigError(f"--timeout={args.timeout:g} must be a number of seconds > 0")
    principals = [text.partition("=")[2] for text in args.overrides if text.startswith("principal=")]
    overrides = [text for text in args.overrides if not text.startswith("principal=")]
    if other_overrides := [text for text in overrides if not text.lstrip("+~").startswith(("env=", "env."))]:
        raise ConfigError(f"llmrl-serve takes env=, env.* and principal=, not {other_overrides[0]}")
    config = Experiment.compose(*overrides).config
    env_config = {**config["env"], "n_envs": 1}

    import uvicorn

    def build_env() -> VecEnv:
        env = build_env_from_config(env_config, config["trusted_modules"], config["seed"])
        assert isinstance(env, VecEnv)
        return env

    example_env = build_env()
    mechanism = _read_recommended_mechanism(principals[-1], args.output_root, example_env.spec) if principals else None
    example_env.close()
    app = make_app(build_env, mechanism, args.sessions, args.timeout)
    uvicorn.run(app, host=args.host, port=args.port, log_level="info", timeout_graceful_shutdown=_SHUTDOWN_SECONDS)


def _read_recommended_mechanism(reference: str, root: Path, spec: EnvSpec) -> np.ndarray:
    """Return the vector that a run recommends in its first context, [d].

    Raises:
        ConfigError: the run has no recommendation, or one with other parameters than the mechanism of `spec`.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.experiment.run_lookup import resolve_run_folder
    from llmrl.results.run_records import read_run

    run = read_run(resolve_run_folder(reference, root))
    rows = run.summary().get("recommendations", [])
    if not rows or spec.mechanism is None or list(rows[0]["mechanism"]) != list(spec.mechanism.names):
        names = "no mechanism" if spec.mechanism is None else ", ".join(spec.mechanism.names)
        raise ConfigError(
            f"principal={reference}: the run in {run.folder} recommends no values of the mechanism of env={spec.name} "
            f"({names})"
        )
    return spec.mechanism.check(list(rows[0]["mechanism"].values()))


if __name__ == "__main__":
    main()
