"""Looks at reports as readers do: Debian's Chromium lays the page out in windows of several widths and draws it."""

import base64
import json
import re
import shutil
import subprocess
import unittest

import numpy
import pytest
from PIL import Image
from report_case import ReportTest, explained, placement, result

pytestmark = pytest.mark.long

BROWSER = shutil.which("chromium-headless-shell")
TALL = 30000  # CSS pixels: more than the longest page here
READABLE = 6.5  # CSS pixels of the smallest text of a figure

# Stands at the end of the page and writes what the browser made of it, as JSON.
MEASURE = """
<script>
addEventListener("load", () => {
  const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  const page = document.documentElement;
  document.body.innerHTML = "<pre id=measured>" + JSON.stringify({
    page: [page.scrollWidth, page.clientWidth, page.scrollHeight],
    tables: [...document.querySelectorAll("table")].map(e => ({
      columns: e.rows[0].cells.length, wide: e.parentElement.scrollWidth, seen: e.parentElement.clientWidth,
      names: [...e.tBodies[0].rows].map(r => r.cells[0].innerText)})),
    figures: [...document.querySelectorAll("figure")].map(e => { const i = e.querySelector("img"); return {
      what: i.alt, source: i.currentSrc, drawn: i.naturalWidth, shown: i.width, box: box(i), wide: e.scrollWidth, seen: e.clientWidth}; }),
  }) + "</pre>";
});
</script>
"""

KINDS = ("RTX 4090", "V100 PCIe 32GB")


def long_names(count):
    """Results with names, meshes and sizes as long as those of a comparison on the paper's cluster."""
    memory = dict.fromkeys(KINDS, 11900000000.0)
    return [
        result(
            f"multi-worker-mirrored-{i}@shares=speed", 2954 - 40 * i, mesh={"pp": 4, "dp": 8, "tp": 2}, peak_memory_bytes=memory,
            tokens_per_s=1_512_421, calibrated=False, energy_j={"per_step": 2345.0},
            cost={"per_billion_tokens": 23.234, "currency": "USD"}, explain=explained(), world_size=64,
        )
        for i in range(count)
    ]  # fmt: skip


def smallest_text(figure):
    """The size in CSS pixels of the smallest letters of a figure. Letters are shapes of 100 units, which matplotlib scales to points."""
    svg = base64.b64decode(figure["source"].split(",", 1)[1])
    points = 100 * min(float(scale) for scale in re.findall(rb"scale\(([\d.]+) -", svg))
    return points / 0.75 * figure["shown"] / figure["drawn"]


@unittest.skipIf(BROWSER is None, "not installed: chromium-headless-shell; tools/setup browser installs it")
class Pages(ReportTest):
    def browser(self, page, width, height, *arguments):
        command = [BROWSER, "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1", *arguments]
        command += [f"--window-size={width},{height}", f"--user-data-dir={self.tmp}/browser", f"file://{page}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def measured(self, width):
        """What Chromium says about the page in a window of this width."""
        copy = self.tmp / "measured.html"
        copy.write_text(self.page.read_text().replace("</body>", MEASURE + "</body>"))
        said = re.search(r"<pre id=.measured.>(.*?)</pre>", self.browser(copy, width, 1000, "--dump-dom"), re.S)
        return json.loads(said[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))

    def drawn(self, width):
        """The page as Chromium draws it: an array [height, width, 3]."""
        self.browser(self.page, width, TALL, f"--screenshot={self.tmp}/page.png")
        with Image.open(self.tmp / "page.png") as image:
            return numpy.asarray(image.convert("RGB"))

    def legible(self, found, width):
        """No part of the page lies outside the window, and each figure is large enough to be read and was really drawn."""
        self.assertEqual(found["page"][0], found["page"][1], f"the page itself must not scroll sideways at {width}")
        self.assertLess(found["page"][2], TALL)
        page = self.drawn(width)
        for figure in found["figures"]:
            with self.subTest(figure["what"], width=width):
                self.assertGreaterEqual(smallest_text(figure), READABLE)
                left, top, right, bottom = (int(edge) for edge in figure["box"])
                seen = page[top:bottom, max(left, 0) : min(right, width)]
                colours = seen.astype(int) @ (1 << 16, 1 << 8, 1)
                self.assertGreater(len(numpy.unique(colours)), 20, "nothing was drawn")

    def test_every_figure_is_legible_on_a_telephone_and_on_a_screen(self):
        self.run_it(*self.everything(), "-o", self.page)
        sources = {}
        for width in (400, 768, 1001, 1280):
            found = self.measured(width)
            self.legible(found, width)
            sources[width] = [figure["source"] for figure in found["figures"]]
            for figure in found["figures"]:
                self.assertLessEqual(figure["wide"], figure["seen"] + 1, f"{figure['what']} at {width}")
        self.assertEqual(len(sources[400]), 13)
        self.assertEqual(sources[400], sources[768])
        self.assertEqual(sources[1001], sources[1280])
        self.assertFalse(set(sources[400]) & set(sources[1280]))

    def test_a_table_of_methods_keeps_every_column_at_1280_pixels(self):
        self.run_it(self.compare(*long_names(6)), "-o", self.page)
        (table,) = self.measured(1280)["tables"]
        self.assertEqual(table["columns"], 10)
        self.assertLessEqual(table["wide"], table["seen"])
        (table,) = self.measured(400)["tables"]  # what does not fit is reached by scrolling; the methods' names stay
        self.assertGreater(table["wide"], table["seen"])

    def test_long_names_and_many_rows_stay_legible(self):
        layers = [{"name": f"L{i}.attention", "stage": 0, "density": 0.1, "reduction": "sparse", "variance": 1e-8} for i in range(24)]
        self.run_it(self.compare(*long_names(24)), self.file("p.json", placement(layers=layers)), "-o", self.page)
        for width in (400, 1280):
            self.legible(self.measured(width), width)

    def test_figures_for_a_screen_cannot_be_read_on_a_telephone(self):
        """Without the narrow figures, the test above fails."""
        self.run_it(*self.everything(), "-o", self.page)
        self.page.write_text(re.sub(r"<source [^>]*>", "", self.page.read_text()))
        self.assertLess(min(map(smallest_text, self.measured(400)["figures"])), 0.6 * READABLE)
