"""Help for a mistyped field: Hydra says that a key is not there, this adds which keys are."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import resources


def missing_field(arguments: Sequence[str], primary: str = "train") -> str | None:
    """A sentence about the first `part.field=value` among command-line arguments whose field does not exist.

    `primary` is the config that the command composes. None if all fields exist, or if the parts themselves cannot be
    composed (Hydra has said why).
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf

    overrides = [a for a in arguments if "=" in a and not a.startswith(("-", "+", "~", "hydra"))]
    pairs = [a.partition("=")[::2] for a in overrides]
    groups = {entry.name for entry in resources.files("llmrl.conf").iterdir() if entry.is_dir()}
    choices = [f"{key}={value.split(',')[0]}" for key, value in pairs if key in groups]
    searchpath = [arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in ("--config-dir", "-cd")]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("llmrl.conf", version_base="1.3"):
            config = compose(primary, [*choices, f"hydra.searchpath=[{','.join(f'file://{p}' for p in searchpath)}]"])
    except HydraException:
        return None
    for key, _ in pairs:
        *parents, field = key.split(".")
        node = OmegaConf.select(config, ".".join(parents)) if parents else config
        if isinstance(node, DictConfig) and field not in list(node):  # `in` denies a field without a default
            valid = [str(name) for name in node if name != "_target_"]
            close = difflib.get_close_matches(field, valid, n=1)
            guess = f" Did you mean {close[0]}?" if close else ""
            where = ".".join(parents) or f"llmrl-{primary}"
            return f"{where} has no option '{field}'; it has: {', '.join(valid)}.{guess}"
    return None
