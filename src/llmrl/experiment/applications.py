"""Which application a config belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.experiment.application import Application


def application_of(config: Mapping[Any, Any]) -> Application:
    """Return the application of a config, composed or resolved: what has a method of training fine-tunes."""
    if "method" in config:
        from llmrl.experiment.finetuning import FineTuning

        return FineTuning()
    from llmrl.experiment.training import Training

    return Training()
