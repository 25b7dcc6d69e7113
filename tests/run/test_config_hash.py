"""Keys that are left out of the hash of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from experiments import compose
from llmrl.run.config_hash import EXCLUDED_KEYS, config_hash

REASONS = {
    "seed": "is a level of the run folder",
    "name": "is a level of the run folder",
    "output_root": "says where the run folder is",
    "trials_dir": "says where trials of fine-tuning are stored for other runs; their content depends on other keys",
    "loggers": "copies the metrics elsewhere",
    "hardware": "places the computation; results agree up to the precision of the device",
    "checkpoint_seconds": "a resumed run has the results of an uninterrupted one",
    "private": "sets the modes of files",
    "trusted_modules": "permits code; the code that is used is in `_target_` and in the digest of sources",
    "resume": "selects what happens to an existing folder",
    "rerun": "selects what happens to an existing folder",
    "dry_run": "computes no run",
    "hydra": "configures the launcher",
    "observers": "read rollouts, and cannot change them",
    "report": "configures the presentation of results",
    "regime_name": "is the name of an option; its values are other keys",
    "regime_noise": "is a recorded noise, for the plan",
    "prompts": "is a path; `prompts_digest` covers the content",
    "play.videos": "selects what is recorded of episodes",
    "play.records": "selects what is recorded of episodes",
    "play.fps": "sets the speed of videos",
    "play.trajectories": "selects what is recorded of episodes",
    "learn.probes": "are queried without learning, with random numbers of their own",
    "learn.probe_interval": "are queried without learning, with random numbers of their own",
    "llm.cache": "a cached reply is the reply of the same request",
    "llm.cache_dir": "says where the cache is",
    "llm.retry": "repeats a request; whether a run goes on without the reply is up to `llm.failures`",
    "llm.limits": "delays requests",
    "llm.budget": "ends a run, which is then not finished",
    "llm.max_invalid": "ends a run, which is then not finished",
    "llm.timeout": "ends an attempt, which is then retried as `llm.retry` says",
    "llm.plain_http": "permits a transport of requests",
}
"""Why each excluded key cannot change results. A key is excluded only with a reason."""

SECOND_NAME = "another value"


def test_excluded_keys_have_reasons() -> None:
    assert set(EXCLUDED_KEYS) == set(REASONS) and len(set(EXCLUDED_KEYS)) == len(EXCLUDED_KEYS)


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and path not in REASONS:
            yield from leaves(value, f"{path}.")
        else:
            yield path


def changed(node: Mapping[str, Any], path: str) -> dict[str, Any]:
    key, _, rest = path.partition(".")
    return {**node, key: changed(node[key], rest) if rest else SECOND_NAME}


@pytest.mark.parametrize(
    ("primary", "overrides"),
    [
        ("train", ("env=escape_room", "principal=llm", "llm=gpt4o")),
        ("train", ("env=taxi", "agent=llm_player", "llm=gpt4o", "play.videos=1")),
        ("finetune", ()),
    ],
)
def test_config_keys_are_hashed_or_excluded(primary: str, overrides: tuple[str, ...]) -> None:
    config = compose(*overrides, primary=primary)
    digest = config_hash(config)
    ignored = {path for path in leaves(config) if config_hash(changed(config, path)) == digest}
    assert ignored == {path for path in leaves(config) if path in REASONS} and len(ignored) >= 10


def test_failure_reaction_is_hashed() -> None:
    """With `fall_back` a run goes on without the replies that failed, and so may have other results."""
    model = ("env=escape_room", "principal=llm", "llm=scripted")
    hashes = {config_hash(compose(*model, f"llm.failures={value}")) for value in ("stop", "fall_back")}
    assert len(hashes) == 2
