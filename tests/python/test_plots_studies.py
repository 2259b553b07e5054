"""The picture of experiments/figure2: what is drawn from which number, gaps included."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots import figure2, style  # noqa: E402


def sample(mean, ci95=0.1):
    return {"mean": mean, "std": ci95, "ci95": ci95, "values": [mean]}


def trained(name, loss, diverged=0):
    return {"variant": name, "validation_loss": loss and sample(loss), "diverged": diverged, "seeds": 5}


FIGURE = {
    "feedback": [
        trained("dense", 4.4),
        trained("literal, 10% kept", 4.6),
        trained("literal, 1% kept", 5.0, 2),
        trained("printed, 10% kept", None, 5),
    ]
}


class Figure2(unittest.TestCase):
    def test_same_bytes(self):
        self.assertEqual(figure2.draw(FIGURE), figure2.draw(FIGURE))

    def test_what_diverged_has_no_mark(self):
        figure, axis = style.figure(4, 3)
        figure2.forms(axis, FIGURE["feedback"])
        self.assertEqual(set(axis.get_legend_handles_labels()[1]), {"dense", "literal"})
        self.assertEqual([tick.get_text() for tick in axis.get_xticklabels()], ["1", "10"])


if __name__ == "__main__":
    unittest.main()
