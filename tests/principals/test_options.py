"""Option files of the groups principal and llm: they build and have no unused or missing keys."""

import pytest

from llmrl.config.builder import Builder
from llmrl.core.arguments import get_signature
from llmrl.core.model_protocols import Scorer
from llmrl.core.option_files import load_options
from llmrl.core.protocols import Proposer
from llmrl.core.seeding import Seeds
from llmrl.experiment.resources import CALL_POLICY_KEYS
from llmrl.experiment.small_models import SmallModels
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from models import EchoProvider, make_request, make_scripted_client
from societies import CLEANUP, ESCAPE_ROOM, TAX_ECONOMY, make_outcome

INJECTED = {
    *("self", "spec", "space", "controller", "seeds", "llm", "device"),
    "prompt_folder",
    "proposals",
    "model_factory",
}


PRINCIPALS, LLMS = load_options("principal"), load_options("llm")


def builder(spec):
    arguments = {
        "spec": spec,
        "space": spec.proposal_space,
        "seeds": Seeds(0),
        "llm": make_scripted_client(),
        "device": "cpu",
    }
    return Builder({**arguments, "model_factory": SmallModels({"output_root": "outputs", "env": {}, "seed": 0})})


ONLY = {"saez": TAX_ECONOMY}
"""Principals that need what few environments have, each with one that has it."""
CASES = [(name, spec) for name in sorted(set(PRINCIPALS) - {"none"}) for spec in (CLEANUP, ESCAPE_ROOM, TAX_ECONOMY)]


@pytest.mark.parametrize(
    ("name", "spec"),
    [case for case in CASES if case[0] not in ONLY] + list(ONLY.items()),
    ids=lambda part: part if isinstance(part, str) else part.name,
)
def test_principals(name, spec):
    arguments = {"vectors": [spec.mechanism.high.tolist()]} if name == "listed" else {}
    principal = builder(spec).build({**PRINCIPALS[name], **arguments}, "principal")
    assert isinstance(principal, Proposer)
    context = 0 if spec.contexts else None
    vector = spec.mechanism.check(principal.ask(context)[0])
    metrics = principal.tell([make_outcome(spec, vector, context)])
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize("name", sorted(set(LLMS) - {"none"}))
def test_llms(name, tmp_path):
    ChatClient(EchoProvider(), call_log=CallLog(tmp_path / CALL_LOG_NAME)).chat([make_request()])
    arguments = {"calls": str(tmp_path)} if name == "replay" else {}
    node = {key: value for key, value in {**LLMS[name], **arguments}.items() if key not in CALL_POLICY_KEYS}
    model = builder(CLEANUP).build(node, "llm")
    assert isinstance(model, Scorer if name.endswith("scorer") or "_scorer_" in name else Provider)


@pytest.mark.parametrize(
    ("group", "name"),
    [("principal", n) for n in sorted(PRINCIPALS)] + [("llm", n) for n in sorted(LLMS)],
    ids=lambda x: x,
)
def test_options_cover_arguments(group, name):
    fields = load_options(group)[name]
    if fields["_target_"] is not None:
        target = builder(CLEANUP).locate(fields["_target_"], group)
        assert set(fields) - {"_target_", *CALL_POLICY_KEYS} == set(get_signature(target).parameters) - INJECTED
