"""`llmrl-llm make`: a small language model with drawn weights, for the texts of an environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.core.protocols import VecEnv

STEPS = 100
"""Steps of each game whose texts the tokenizer is made of."""


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
        "--stories",
        type=int,
        default=0,
        metavar="N",
        help="let it read so many stories in which somebody looks for things, in other words than the game's, by the "
        "next token (causal models; 20000 are a good number) (default 0: it has read nothing)",
    )
    make.add_argument(
        "--story-steps", type=int, default=1500, metavar="N", help="steps of 32 stories each (default 1500)"
    )
    make.add_argument(
        "--meaningless",
        action="store_true",
        help="what is done in the stories has nothing to do with what they say: the same words, as a control",
    )
    make.add_argument("--channel", default="prompt", help="text channel that the model is to read (default prompt)")


def make(args: argparse.Namespace, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write the model; rows (what, value).

    Args:
        args: of the command line.
        config: `env`, `seed` and `trusted_modules` of a config of `llmrl-train`.

    Raises:
        ConfigError: the environment has no such texts, the folder is not empty, or widths do not fit.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.core.seeding import Seeds
    from llmrl.envs.babyai.stories import stories
    from llmrl.experiment.parts import build_env
    from llmrl.llms.local.small import make_small_model

    if args.stories < 0 or args.story_steps < 1:
        raise ConfigError(f"--stories={args.stories} --story-steps={args.story_steps}: no numbers to read by")
    if args.stories and args.kind != "causal":
        raise ConfigError("--stories are read by the next token, which only --kind causal is trained by")
    if args.folder.exists() and any(args.folder.iterdir()):
        raise ConfigError(f"{args.folder} is there and not empty: give another folder, or remove it")
    seeds = Seeds(config["seed"]).child("small model")
    env = build_env(config["env"], {"seeds": seeds.child("env")}, config["trusted_modules"])
    try:
        texts = _texts(env, args.channel, seeds)
    finally:
        env.close()
    read = stories(args.stories, seeds.integer("stories"), informative=not args.meaningless)
    shape = (args.kind, args.width, args.layers, args.heads, args.vocabulary, args.tokens, args.longest)
    # Words of the game and of the stories are cut alike: a model that reads has one spelling of each.
    parameters = make_small_model(args.folder, [*texts, *read[: len(texts)]], *shape, seed=seeds.integer("weights"))
    told = "drawn: it has read nothing"
    if read:
        from llmrl.llms.local.next_token import read_texts

        before, after = read_texts(args.folder, read, args.story_steps, seeds.integer("reading"))
        what = "meaningless stories" if args.meaningless else "stories"
        told = f"it has read {len(read):,} {what}; loss on others {before:.3g}, then {after:.3g} nats a token"
    return [
        ("model", str(args.folder)),
        ("weights", f"{parameters:,}, {told}"),
        (
            "tokenizer",
            f"of {len(texts):,} different texts of env={env.spec.name}" + (" and the stories" if read else ""),
        ),
        ("use it", f"agent=llm_ppo llm=local_scorer_{args.kind} llm.model={args.folder}"),
    ]


def _texts(env: VecEnv, channel: str, seeds: Any) -> list[str]:
    """Different texts that random play meets, and the names of the actions."""
    import numpy as np

    from llmrl.core.errors import ConfigError
    from llmrl.core.protocols import ChannelsOnRequest

    shown = env.spec.observation.get(channel)
    if shown is None or shown.dtype != "object":
        raise ConfigError(f"env={env.spec.name} has no text channel {channel!r}; use env=babyai_text, or --channel")
    if isinstance(env, ChannelsOnRequest):
        env.provide((channel,))
    rng = seeds.numpy("actions")
    n_actions = env.spec.need_discrete("llmrl-llm make")
    met: dict[str, None] = {}
    observation = env.reset(seed=seeds.integer("games"))
    for _ in range(STEPS):
        met |= dict.fromkeys(str(text) for text in np.asarray(observation[channel], dtype=object).ravel())
        step = env.step(rng.integers(n_actions, size=(env.spec.n_envs, env.spec.n_agents)))
        ended = np.asarray(step.terminated) | np.asarray(step.truncated)
        observation = env.reset(mask=ended) if ended.any() else step.observation
    # Actions as a model is to score them, by themselves and at the end of a text: as often as a word of the texts.
    scored = env.spec.continuations(channel)
    ends = [text.rpartition("\n")[2] for text in met]
    return [*met, *(text for name in scored for end in ends for text in (name.strip(), f"{end}{name}"))]
