"""Joining hard-wrapped lines into paragraphs."""


def fill(lines):
    """Joins hard-wrapped lines into paragraphs; None ends a paragraph, a tuple (line,) is kept as a
    line of its own."""
    paragraphs, current = [], []
    for line in [*lines, None]:
        if line is None or line == "" or isinstance(line, tuple):
            if current:
                paragraphs.append(" ".join(current))
                current = []
            if isinstance(line, tuple):
                paragraphs.append(line)
        else:
            current.append(line.strip())
    out, previous_kept = [], False
    for paragraph in paragraphs:
        kept = isinstance(paragraph, tuple)
        if out:
            out.append("\n" if kept and previous_kept else "\n\n")
        out.append(paragraph[0] if kept else paragraph)
        previous_kept = kept
    return "".join(out)
