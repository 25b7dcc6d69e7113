"""Which weights are trained: a low-rank adapter over a frozen model (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.limits import PositiveFloat, PositiveInt, UnitInterval
from llmrl.llms.local.adapter import CONFIG, write_base
from llmrl.run.files import sync_folder

if TYPE_CHECKING:
    import torch

Targets = list[str] | Literal["all-linear"]


@dataclass(frozen=True)
class Lora:
    """W x becomes W x + (alpha / rank) B A x in the chosen layers, and only A [rank, in] and B [out, rank] are trained.

    Attributes:
        rank: of the product B A.
        alpha: scale of it.
        dropout: share of x that A does not see in training.
        targets: ends of the names of the layers, e.g. [q_proj, v_proj]; `all-linear`: every linear layer but the one
            that gives the tokens' scores.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: UnitInterval = 0.0
    targets: Targets = "all-linear"

    def config(self) -> Any:
        """peft's `LoraConfig`."""
        from peft import LoraConfig, TaskType

        return LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=self.targets,
            task_type=TaskType.CAUSAL_LM,
        )

    def check(self, module: torch.nn.Module) -> int:
        """How many numbers would be trained; nothing is changed.

        Raises:
            ConfigError: the model has no such layers, or its output layer is among them.
        """
        import torch

        linear = {name: m for name, m in module.named_modules() if isinstance(m, torch.nn.Linear) or _is_conv1d(m)}
        head = next((n for n, m in linear.items() if m is getattr(module, "get_output_embeddings", lambda: None)()), "")
        if self.targets == "all-linear":
            chosen = {name for name in linear if name != head}
        else:
            chosen = {n for n in linear if any(n == target or n.endswith(f".{target}") for target in self.targets)}
        if not chosen:
            ends = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(
                f"method.lora.targets={self.targets}: the model has no such layers; it has {', '.join(ends)}, or use "
                "all-linear"
            )
        if head in chosen:
            raise ConfigError(
                f"method.lora.targets={self.targets}: {head} gives the tokens' scores and cannot have an adapter here; "
                "leave it out"
            )
        return sum(self.rank * sum(linear[name].weight.shape) for name in chosen)


def save_adapter(model: Any, folder: Path, name: str, revision: str | None, files: str | None) -> None:
    """Write the adapter of a peft model to `folder` in one step, in place of an earlier one.

    Equal weights give equal files, so that `adapter_fingerprint` tells trainings apart and nothing else.

    Args:
        model: `PeftModel`.
        folder: to write.
        name, revision, files: what it was trained on, see `llmrl.llms.local.adapter.BASE`.

    Raises:
        RunFolderError: it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # a model card with nothing in it
        settings = json.loads((temporary / CONFIG).read_text(encoding="utf-8"))
        # peft keeps names in sets, whose order differs from process to process.
        ordered = {k: sorted(v) if isinstance(v, list) and _texts(v) else v for k, v in settings.items()}
        (temporary / CONFIG).write_text(json.dumps(ordered, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        write_base(temporary, name, revision, files)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise RunFolderError(f"cannot write the adapter to {folder}: {error.strerror or error}") from error


def _texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_conv1d(module: Any) -> bool:
    """GPT-2's linear layers."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
