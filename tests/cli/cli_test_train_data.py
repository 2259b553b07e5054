"""Token shards for tests that train, from the project's own documents."""

import contextlib
import io
import re
import sys

from cli_test_case import ROOT

sys.path.insert(0, str(ROOT))
from data import prepare  # noqa: E402


def write_tokens(folder, model="gpt-tiny"):
    """Shards for a model's vocabulary below `folder`; returns theirs."""
    text = folder / "text"
    text.mkdir()
    for i, page in enumerate(sorted((ROOT / "docs").glob("*.md"))):
        (text / f"{i}.md").write_text(page.read_text())
    vocab = re.search(r"^vocab = (\d+)", (ROOT / f"models/{model}.toml").read_text(), re.M)[1]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = prepare.main(
            [str(text), "-o", str(folder / "tokens"), "--vocab-size", vocab, "--quiet"]
        )
    assert status == 0
    return folder / "tokens"
