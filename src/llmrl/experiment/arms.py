"""Whether a run proposes often enough for a principal that has to try arms before it knows anything of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.core.protocols import Bandit, Proposer
from llmrl.experiment.parts import loop_kind, proposals_of
from llmrl.principals.grid import FINE, PLAYS, fitting_points


def shortage(config: Mapping[str, Any], principal: Proposer | None) -> str | None:
    """What it means that a run makes fewer proposals than its principal has arms, and what to set instead; None if it
    does not, or there are no arms."""
    kind = loop_kind(config)
    if not isinstance(principal, Bandit) or kind not in ("design", "search"):
        return None
    made, arms, space = proposals_of(config, kind), principal.n_arms, principal.space
    each = made // space.n_rows
    if each >= arms:
        return None
    proposed = f"{each:,} proposal{'s' * (each != 1)}"
    if space.n_rows > 1:
        proposed = f"about {proposed} in each of {space.n_rows} contexts"
    times, at_once = ("steps" if kind == "design" else "iterations"), config[kind]["candidates"]
    longer = f"{kind}.{times}={-(-PLAYS * arms * space.n_rows // at_once)}"
    points = fitting_points(space, FINE, made)
    coarser = f"principal.points={points} or " if points**space.dim <= each else ""
    return (
        f"{proposed}, {arms:,} arms: close to a random search, as {arms - each:,} arms or more are never played; set "
        f"{coarser}{longer}, or choose a principal without a grid (cem, cmaes, gp, llm)"
    )
