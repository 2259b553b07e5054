"""Runs docs/python.ipynb and the code of docs/python.md. What each cell of the notebook shows must be what stands in it;
REHEARSE_UPDATE=1 writes it."""

import ast
import contextlib
import io
import json
import os
import re
import unittest

import pandas
from package_case import ROOT, PackageCase

NOTEBOOK = ROOT / "docs/python.ipynb"


def shown(source, names):
    """The outputs of a cell, as a notebook keeps them: what it prints, and its last value as text."""
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        text = repr(value).splitlines(keepends=True)
        outputs.append({"data": {"text/plain": text}, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


class Documents(PackageCase):
    def setUp(self):
        super().setUp()
        self.enterContext(pandas.option_context("display.width", 130, "display.max_columns", 20))

    def test_the_notebook(self):
        notebook = json.loads(NOTEBOOK.read_text())
        self.enterContext(contextlib.chdir(ROOT))
        names = {"__name__": "__main__"}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = shown("".join(cell["source"]), names)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        if os.environ.get("REHEARSE_UPDATE") == "1":
            NOTEBOOK.write_text(text)
        self.maxDiff = 4000
        self.assertEqual(NOTEBOOK.read_text(), text)

    def test_the_page(self):
        (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.M | re.S)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code, {"__name__": "__main__"})
        self.assertIn("zero3", said.getvalue())


if __name__ == "__main__":
    unittest.main()
