"""Hydra configuration of llmrl; installed as the package `llmrl.conf`."""

import math
from collections.abc import Callable

import omegaconf
from omegaconf import OmegaConf

from llmrl.core.hydra_composition import patch_table_merging

# From 2.4 on the name without `new_` is the one that stays; in 2.3 it is that of an older function.
_old = omegaconf.__version__.startswith("2.3.")
register_resolver: Callable[..., None] = OmegaConf.register_new_resolver if _old else OmegaConf.register_resolver
# `${product:2,${design.candidates}}`: a count that follows others.
register_resolver("product", lambda *factors: math.prod(factors), replace=True)
patch_table_merging()
