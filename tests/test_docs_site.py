"""The site of the documentation: it builds without a warning, and its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import copies
import pytest

pytest.importorskip("material", reason="mkdocs-material is not installed (the extra docs)")
ROOT = Path(__file__).parents[1]
LOADED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)\"""")


@pytest.mark.long
@pytest.mark.slow
def test_site_builds_offline(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"index.html", "options.html", "protocols.html", "govern_a_village.html"} <= {page.name for page in pages}
    loaded = {quoted or bare for page in pages for quoted, bare in LOADED.findall(page.read_text())}
    assert not [address for address in loaded if address.startswith(("http:", "https:", "//"))]
    assert 'id="llmrl.api.experiments.train"' in (tmp_path / "site" / "reference" / "api.html").read_text()


def test_file_copies_are_current():
    """After a change of a copied file: python scripts/copies.py."""
    pages = copies.find_pages()
    assert {page.name for page in pages} == {"extending.md", "index.md"}
    for page in pages:
        assert copies.update_page(page.read_text()) == page.read_text(), page
