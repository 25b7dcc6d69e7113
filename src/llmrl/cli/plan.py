"""What a run would do: the plan that `dry_run=true` prints after building every part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.cli.compose import Parts
from llmrl.core.protocols import Loop


def plan(config: Mapping[str, Any], parts: Parts, loop: Loop) -> list[tuple[str, str]]:
    """Rows (what, value): parts, shapes, parameter counts, environment steps and LLM calls."""
    spec = parts.env.spec
    rows = [
        (
            "env",
            f"{spec.name}: {spec.n_envs} games x {spec.n_agents} agents, {spec.n_actions} actions, "
            f"horizon {spec.horizon or 'set by the engine'}",
        ),
        *(
            (f"  {name}", f"[{spec.n_envs}, {spec.n_agents}{''.join(f', {n}' for n in c.shape)}] {c.dtype}")
            for name, c in spec.observation.items()
        ),
    ]
    if spec.mechanism is not None:
        rows.append(("mechanism", spec.mechanism.name))
        rows += [(f"  {p.name}", f"[{p.low:g}, {p.high:g}] {p.unit}") for p in spec.mechanism.parameters]
    agent = parts.agent.describe()
    rows.append(("agent", ", ".join(f"{k}: {v:,}" if isinstance(v, int) else f"{k}: {v}" for k, v in agent.items())))
    rows.append(("principal", "none" if parts.principal is None else type(parts.principal).__name__))
    rows.append(("llm", "not used" if parts.llm is None else parts.llm.label))
    rows.append(("loop", type(loop).__name__))
    rows += loop.plan()
    rows.append(("hardware", f"{config['hardware']['device']}, threads {config['hardware']['threads'] or 'default'}"))
    return rows
