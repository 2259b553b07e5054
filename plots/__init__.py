"""Figures and the HTML report, from the JSON that `rehearse` writes."""
