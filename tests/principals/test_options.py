"""Every option file of the groups principal and llm builds, and has no dead or missing key."""

import inspect
from importlib.resources import files

import pytest
import yaml

from llmrl.cli.build import Builder
from llmrl.core.protocols import ChatModel, Proposer
from llmrl.core.seeding import Seeds
from llmrl.llms.scripted import ScriptedChat
from societies import CLEANUP, ESCAPE_ROOM, outcome

INJECTED = {"self", "spec", "seeds", "llm"}


def options(group):
    folder = files("llmrl.conf") / group
    return {
        p.name.removesuffix(".yaml"): yaml.safe_load(p.read_text()) for p in folder.iterdir() if p.suffix == ".yaml"
    }


PRINCIPALS, LLMS = options("principal"), options("llm")


def builder(spec):
    return Builder({"spec": spec, "seeds": Seeds(0), "llm": ScriptedChat()})


@pytest.mark.parametrize("spec", [CLEANUP, ESCAPE_ROOM], ids=lambda spec: spec.name)
@pytest.mark.parametrize("name", sorted(set(PRINCIPALS) - {"none"}))
def test_principals(name, spec):
    principal = builder(spec).build(PRINCIPALS[name], "principal")
    assert isinstance(principal, Proposer)
    context = 0 if spec.contexts else None
    vector = spec.mechanism.check(principal.ask(context))
    metrics = principal.tell(outcome(spec, vector, context))
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize("name", sorted(set(LLMS) - {"none"}))
def test_llms(name):
    assert isinstance(builder(CLEANUP).build(LLMS[name], "llm"), ChatModel)


@pytest.mark.parametrize(
    ("group", "name"),
    [("principal", n) for n in sorted(PRINCIPALS)] + [("llm", n) for n in sorted(LLMS)],
    ids=lambda x: x,
)
def test_every_argument_is_in_the_file_and_commented(group, name):
    text = (files("llmrl.conf") / group / f"{name}.yaml").read_text()
    fields = yaml.safe_load(text)
    if fields["_target_"] is not None:
        target = builder(CLEANUP)._locate(fields["_target_"], group)
        assert set(fields) - {"_target_"} == set(inspect.signature(target.__init__).parameters) - INJECTED
    assert text.startswith("# ")
    for line in text.splitlines():
        assert line.startswith(("#", "_target_")) or "  # " in line or " # " in line, line
