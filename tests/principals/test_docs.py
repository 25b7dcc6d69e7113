"""Examples of principals in the documentation."""

import re
from pathlib import Path

import numpy as np

from llmrl.core.model_protocols import ChatModel
from llmrl.core.protocols import Proposer
from llmrl.core.records import ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.client import ChatClient
from shipped import build_llm_principal
from societies import make_outcome, make_toy_spec

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str) -> dict:
    """Return the definitions of the only Python example of a page."""
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    namespace: dict = {}
    exec(compile(code, page, "exec"), namespace)
    return namespace


def test_custom_principal():
    society = make_toy_spec()
    principal = example("principals.md")["HillClimber"](society.proposal_space, Seeds(0), step=0.2)
    assert isinstance(principal, Proposer)
    values = []
    for _ in range(60):
        outcome_ = make_outcome(society, society.mechanism.check(principal.ask()[0]))
        principal.tell([outcome_])
        values.append(outcome_.value)
    assert np.max(values) > values[0] + 0.5


def test_custom_chat_model():
    parrot = ChatClient(example("llms.md")["Parrot"]())
    assert isinstance(parrot, ChatModel)
    [reply] = parrot.chat([ChatRequest(({"role": "user", "content": "$1, 2$"},))])
    assert build_llm_principal(make_toy_spec(), parrot).parse_reply(reply.text).vector.tolist() == [1, 2]
