"""Export of the language model that a run has trained: its adapter in peft's format, or a complete model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.experiment.experiment import Experiment
from llmrl.llms.client import ChatClient
from llmrl.llms.local.candidate_scorer import LocalScorer
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.loading import ModelKind, load_model, load_tokenizer
from llmrl.llms.local.lora import merge_adapter
from llmrl.run.artifacts import ADAPTER_FOLDER, load_saved_state, read_config


def export_model(run: Path, out: Path | None, merge: bool, trusted: Sequence[str]) -> Path:
    """Write the trained model of a run, and return its folder.

    Args:
        run: run folder.
        out: folder to create. None: `<run>/merged` with `merge`; without it, the adapter's folder in the run folder.
        merge: whether to write a complete model and its tokenizer, with a trained adapter merged into the weights.
        trusted: modules that the run's config may import code from.

    Raises:
        ConfigError: the run has trained no language model, `out` exists, or `merge` is false and there is no adapter.
    """
    adapter = run / ADAPTER_FOLDER
    if out is not None and out.exists():
        raise ConfigError(f"--out={out} exists already; give another folder")
    if not merge:
        if not adapter.is_dir():
            raise ConfigError(
                f"{run} has no adapter: it is not finished, or trained none (llm.learn.tune=lora, agent.tune=lora). "
                "Use --merge for a run that trained all weights"
            )
        if out is None:
            return adapter
        shutil.copytree(adapter, out)
        return out
    folder = run / "merged" if out is None else out
    module, local_model = _load_trained_module(run, adapter, read_config(run, trusted))
    folder.mkdir(parents=True, exist_ok=True)
    module.save_pretrained(folder)
    load_tokenizer(local_model.model, local_model.settings.revision).save_pretrained(folder)
    return folder


def _load_trained_module(run: Path, adapter: Path, config: dict[str, Any]) -> tuple[Any, LocalChat | LocalScorer]:
    """Return a transformers model with the weights that a run trained, and the run's part that names the base model."""
    client_or_model: Any = Experiment(config).resources.model if config.get("llm") else None
    model = client_or_model.provider if isinstance(client_or_model, ChatClient) else client_or_model
    if not isinstance(model, LocalChat | LocalScorer):
        raise ConfigError(f"{run} has trained no language model with local weights")
    kind: ModelKind = "causal" if isinstance(model, LocalChat) else model.kind
    module: Any = load_model(kind, model.model, model.settings.revision, device="cpu", dtype="float32")
    if adapter.is_dir():
        return merge_adapter(module, str(adapter)), model
    run_state = load_saved_state(run)[1]
    part_state = (run_state.get("principal") or {}).get("learning") or run_state["agents"][-1]
    learner_state = part_state.get("learners", [part_state.get("learner")])[0] or {}
    if "weights" in learner_state:
        weights = learner_state["weights"]
    else:
        prefix = "network.language."
        policy_weights = part_state.get("policy", {}).items()
        weights = {name.removeprefix(prefix): x for name, x in policy_weights if name.startswith(prefix)}
    if not weights:
        raise ConfigError(f"{run} has trained no weights of a language model")
    unexpected_keys = module.load_state_dict(weights, strict=False).unexpected_keys
    if unexpected_keys:
        raise ConfigError(f"the weights of {run} do not fit {model.model}: it has no {unexpected_keys[0]}")
    return module, model
