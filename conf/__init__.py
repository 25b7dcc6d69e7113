"""Hydra configuration of llmrl; installed as the package `llmrl.conf`."""

import math

from omegaconf import OmegaConf

# `${product:2,${design.candidates}}`: a count that follows others.
OmegaConf.register_new_resolver("product", lambda *factors: math.prod(factors), replace=True)
