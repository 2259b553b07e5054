"""The figures of a plan: what they show, and the error messages for malformed placements."""

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from report_case import PageText, ReportTest, given, placement

from plots import placement as pictures
from plots import style


def read(value):
    return given(value).placements[0]


class Pictures(ReportTest):
    def test_devices_have_the_colour_of_their_stage_and_their_rank(self):
        axes = pictures.draw(read(placement())).axes[0]
        squares = [p for p in axes.patches if isinstance(p, Rectangle)]
        colours = [to_hex(s.get_facecolor()).upper() for s in squares]
        first, second = style.SERIES[0].upper(), style.SERIES[1].upper()
        self.assertEqual(colours, [first] * 4 + [second] * 3 + [style.PAPER.upper()])
        texts = [t.get_text() for t in axes.texts]
        self.assertEqual([t for t in texts if t.isdigit()], [str(r) for r in range(7)])
        # Kinds of device: the second kind is hatched; only the devices of node 3 have it.
        self.assertEqual([bool(s.get_hatch()) for s in squares], [False] * 6 + [True] * 2)
        legend = [t.get_text() for t in axes.get_legend().get_texts()]
        self.assertEqual(legend[0], "stage 0: embedding .. L0.attention")
        self.assertEqual(legend[2:], ["RTX 4090", "V100"])

    def test_layers(self):
        figure = pictures.draw_layers(read(placement()))
        top, bottom = figure.axes
        heights = [bar.get_height() for bar in bottom.patches]
        for height, sparsity in zip(heights, (0, 0.7, 0.95, 0.9), strict=True):
            self.assertAlmostEqual(height, sparsity)
        self.assertEqual([bar.get_height() for bar in top.patches], [1e-9, 3e-7, 1e-8, 2e-8])
        self.assertEqual([t.get_text() for t in bottom.texts], ["dense"])
        # Without a profile there is no upper panel.
        value = placement()
        for layer in value["placement"]["layers"]:
            layer["variance"] = None
        self.assertEqual(len(pictures.draw_layers(read(value)).axes), 1)

    def test_many_nodes_end_somewhere(self):
        node = placement()["placement"]["nodes"][0]
        one = read(placement(nodes=[node] * 100))
        axes = pictures.draw(one).axes[0]
        self.assertIn("52 more nodes not drawn", axes.get_title(loc="left"))

    def test_the_report_shows_them(self):
        self.run_it(self.file("placement.json", placement()), "-o", self.page)
        text = " ".join(PageText(self.page.read_text()).text)
        self.assertIn("The plan on the cluster", text)
        self.assertIn("Variance and sparsity of each layer", text)
        self.run_it(self.file("dense.json", placement(layers=[])), "-o", self.page)
        text = " ".join(PageText(self.page.read_text()).text)
        self.assertNotIn("Variance and sparsity of each layer", text)

    def test_complaints(self):
        broken = placement()
        del broken["placement"]["nodes"][1]["devices"][0]["rank"]
        self.fails(self.file("a.json", broken), says="a.json: $.placement.nodes[1].devices[0]: Object missing required field `rank`")
        broken = placement(stages=["all"])
        self.fails(self.file("a.json", broken), says="a.json: $.placement: Expected `stage` of node2/gpu0 below 1, got 1")
        broken = placement()
        broken["placement"]["layers"][2]["density"] = -1
        self.fails(self.file("a.json", broken), says="$.placement.layers[2].density: Expected `float` >= 0.0")
