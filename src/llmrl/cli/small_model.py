"""`llmrl-llm make`: a small language model with drawn weights, for the texts of an environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any


def add_arguments(commands: Any) -> None:
    """The subcommand `make`."""
    make = commands.add_parser(
        "make",
        help="write a small model with random weights that can be trained on a processor",
        description="Write a small model with random weights and a tokenizer made of the texts of an environment: "
        "llmrl-llm make outputs/models/small env=goto_red_ball",
    )
    make.add_argument("folder", type=Path, help="to write, e.g. outputs/models/small; then llm.model=<folder>")
    make.add_argument("overrides", nargs="*", help="as for llmrl-train: env=<option> and its fields, seed=<n>")
    make.add_argument(
        "--kind",
        choices=("seq2seq", "causal"),
        default="causal",
        help="causal (Llama, for llm=local_scorer_causal; learns sooner from nothing) or seq2seq (T5, for "
        "llm=local_scorer_seq2seq) (default causal)",
    )
    make.add_argument("--width", type=int, default=128, help="of the layers (default 128)")
    make.add_argument(
        "--layers", type=int, default=2, help="of the (en)coder; seq2seq has one in the decoder (default 2)"
    )
    make.add_argument("--heads", type=int, default=4, help="of attention (default 4)")
    make.add_argument("--vocabulary", type=int, default=1024, help="most tokens, >= 300 (default 1024)")
    make.add_argument(
        "--tokens",
        choices=("phrases", "words"),
        default="phrases",
        help="what may become one token: phrases (short prompts, learnt sooner) or words (default phrases)",
    )
    make.add_argument(
        "--longest",
        type=int,
        default=1024,
        help="most tokens of a prompt and an action together; seq2seq has no limit (default 1024)",
    )
    make.add_argument(
        "--reads",
        choices=("nothing", "stories", "meaningless"),
        default="nothing",
        help="what it reads by the next token before it is used (causal models): nothing; stories in which somebody "
        "looks for things, in other words than the game's; or meaningless ones: the same words, which say nothing "
        "(default nothing)",
    )
    make.add_argument("--stories", type=int, default=20000, help="how many there are (default 20000)")
    make.add_argument("--story-steps", type=int, default=1500, help="steps of 32 stories each (default 1500)")
    make.add_argument("--channel", default="prompt", help="text channel that the model is to read (default prompt)")


def make(args: argparse.Namespace, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write the model; rows (what, value).

    Args:
        args: of the command line.
        config: `env`, `seed` and `trusted_modules` of a config of `llmrl-train`.

    Raises:
        ConfigError: the environment has no such texts, the folder is not empty, or widths do not fit.
    """
    from llmrl.config.builder import Builder
    from llmrl.core.errors import ConfigError
    from llmrl.experiment.small_models import make_for_env
    from llmrl.llms.local.small import SmallModel

    if args.folder.exists() and any(args.folder.iterdir()):
        raise ConfigError(f"{args.folder} is there and not empty: give another folder, or remove it")
    names = [field.name for field in fields(SmallModel) if field.name != "seed"]
    node = {"_target_": f"{SmallModel.__module__}.SmallModel", "seed": config["seed"]}
    model: SmallModel = Builder().build({**node, **{name: getattr(args, name) for name in names}}, "--")
    made = make_for_env(args.folder, config, args.kind, model)
    read = "" if made.losses is None else "; loss on others {:.3g}, then {:.3g} nats a token".format(*made.losses)
    return [
        ("model", str(args.folder)),
        ("weights", f"{made.parameters:,}; it {model.told}{read}"),
        ("tokenizer", f"of {made.texts:,} different texts of the environment" + (" and the stories" if read else "")),
        ("use it", f"agent=llm_ppo llm=local_scorer_{args.kind} llm.model={args.folder}"),
    ]
