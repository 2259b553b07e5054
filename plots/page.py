"""The HTML report: one file, no scripts, nothing loaded from elsewhere; pictures are SVG or PNG
inside it."""

import base64
import html

from plots import methods, prediction, style

CSS = """
:root { --ink:#1f2933; --quiet:#5f6b78; --line:#e1e5ea; --blue:#0072B2; --paper:#fff; --ground:#f5f7f9; }
* { box-sizing:border-box; }
body { margin:0; background:var(--ground); color:var(--ink);
  font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; }
main { max-width:1240px; margin:0 auto; padding:2.2rem 1.4rem 3rem; }
h1 { font-size:1.75rem; margin:0 0 .2rem; letter-spacing:-.01em; }
h2 { font-size:1.2rem; margin:0 0 .2rem; }
p { margin:.3rem 0 .9rem; max-width:75ch; color:var(--quiet); }
section { background:var(--paper); border:1px solid var(--line); border-radius:10px;
  padding:1.3rem 1.5rem 1.1rem; margin:1.3rem 0; }
figure { margin:.8rem 0; }
figure img { width:100%; height:auto; display:block; }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; width:100%; font-size:.86rem;
  font-variant-numeric:tabular-nums; }
th, td { padding:.42rem .45rem; text-align:right; white-space:nowrap; border-bottom:1px solid var(--line); }
th { font-weight:600; color:var(--quiet); border-bottom:2px solid var(--line);
  vertical-align:bottom; line-height:1.25; }
th small { font-weight:400; display:block; }
th:first-child, td:first-child { text-align:left; }
tbody tr:last-child td { border-bottom:0; }
tbody tr:hover { background:#f7fafc; }
td small { color:var(--quiet); }
td.best { font-weight:700; color:var(--blue); }
.bar { background:linear-gradient(90deg,#d6e8f4 var(--share),transparent var(--share)); }
.tag { display:inline-block; border-radius:4px; padding:0 .4em; font-size:.78rem;
  background:#fbe9d0; color:#7a4a00; font-weight:400; }
.good { color:#00765a; font-weight:600; }
ul { margin:.4rem 0; padding-left:1.2rem; color:var(--quiet); }
.facts { display:flex; flex-wrap:wrap; gap:.7rem; margin:1rem 0 0; }
.fact { background:var(--paper); border:1px solid var(--line); border-radius:10px;
  padding:.7rem 1.1rem; min-width:11rem; }
.fact b { display:block; font-size:1.35rem; line-height:1.3; }
.fact span { color:var(--quiet); font-size:.85rem; }
footer { color:var(--quiet); font-size:.82rem; margin-top:1.6rem; }
footer code { word-break:break-all; }
@media print { body { background:#fff; } section { break-inside:avoid; border:0; padding:0; } }
"""


def escape(text):
    return html.escape(str(text), quote=True)


def picture(content, form, alt):
    """An <img> that holds its picture; as an image, its ids cannot meet those of another SVG on the
    page."""
    kind = {"svg": "image/svg+xml", "png": "image/png"}[form]
    return f'<figure><img alt="{escape(alt)}" src="data:{kind};base64,{base64.b64encode(content).decode()}"></figure>'


def table(head, rows):
    """`head`: (title, unit) pairs; `rows`: lists of cells, a cell being HTML or (HTML,
    attributes)."""
    titles = "".join(f"<th>{escape(t)}{f'<small>{escape(u)}</small>' if u else ''}</th>" for t, u in head)
    body = "".join(
        "<tr>" + "".join(f"<td {c[1]}>{c[0]}</td>" if isinstance(c, tuple) else f"<td>{c}</td>" for c in row) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>\n{body}</tbody></table></div>'


def section(title, text, *parts):
    return f"<section><h2>{escape(title)}</h2><p>{text}</p>{''.join(parts)}</section>"


def time_cell(seconds, spread=None):
    factor, unit = style.time_unit(seconds)
    around = f" <small>± {style.number(spread * factor, 2)}</small>" if spread else ""
    return f"{style.number(seconds * factor)}{around} {unit}"


def size_cell(count):
    divisor, unit = style.byte_unit(count)
    return f"{style.number(count / divisor)} {unit}"


def energy_cell(joules):
    if joules is None:
        return "–"
    divisor, unit = style.energy_unit(joules)
    return f"{style.number(joules / divisor)} {unit}"


def methods_table(results):
    """Every method with every number, the fastest first; the best of a column is marked."""
    rows = methods.ranked(results)
    fastest = rows[0][1]["samples_per_s"] or 1
    columns = (
        ("step_time", min),
        ("samples_per_s", max),
        ("mfu", max),
        ("bubble_fraction", min),
        ("exposed_comm_s", min),
        ("sent_mean", min),
        ("energy", min),
        ("robustness", max),
    )
    best = {}
    for key, choose in columns:
        known = [r[key] for _, r in rows if r[key] is not None]
        best[key] = choose(known) if len(set(known)) > 1 else None

    def marked(result, key, text, more=""):
        name = "best" if result[key] is not None and result[key] == best[key] else ""
        return text, f'class="{name} bar" style="{more}"' if more else f'class="{name}"'

    body = []
    for name, result in rows:
        tag = "" if result["calibrated"] else '<br><span class="tag">uncalibrated</span>'
        share = f"--share:{100 * result['samples_per_s'] / fastest:.1f}%"
        memory = (
            "<br>".join(
                f"{size_cell(v)}" + (f" <small>{escape(k)}</small>" if len(result["peak_memory"]) > 1 else "")
                for k, v in result["peak_memory"].items()
            )
            or "–"
        )
        body.append(
            [
                (f"{escape(name)}<br><small>{escape(result['mesh'] or str(result['world_size']) + ' ranks')}</small>"),
                marked(result, "step_time", time_cell(result["step_time"], result["ci95"]) + tag),
                marked(result, "samples_per_s", style.number(result["samples_per_s"], 4), share),
                style.number(result["tokens_per_s"], 4),
                marked(
                    result,
                    "mfu",
                    "–" if result["mfu"] is None else style.percent(result["mfu"]) + tag,
                ),
                marked(result, "bubble_fraction", style.percent(result["bubble_fraction"])),
                marked(
                    result,
                    "exposed_comm_s",
                    time_cell(result["exposed_comm_s"]) if result["exposed_comm_s"] else "0",
                ),
                marked(result, "sent_mean", size_cell(result["sent_mean"])),
                memory,
                marked(result, "energy", energy_cell(result["energy"])),
                marked(
                    result,
                    "robustness",
                    "–" if result["robustness"] is None else f"{result['robustness']:.3f}",
                ),
            ]
        )
    return table(
        (
            ("Method", "mesh"),
            ("Step time", "± 95%"),
            ("Throughput", "samples/s"),
            ("Throughput", "tokens/s"),
            ("MFU", ""),
            ("Bubble", ""),
            ("Exposed", "comm. a step"),
            ("Sent", "per rank and step"),
            ("Peak memory", "per device"),
            ("Energy", "all devices, a step"),
            ("Robustness", "1 − std/mean"),
        ),
        body,
    )


def prediction_table(runs):
    body = []
    for run in runs:
        off = prediction.error(run)
        good = off is not None and abs(off) <= prediction.BAND
        tag = ' <span class="tag">oversubscribed</span>' if run["oversubscribed"] else ""
        body.append(
            [
                escape(run["name"]) + tag,
                str(run["world_size"]),
                time_cell(run["predicted"], run["ci95"]),
                "not yet" if off is None else time_cell(run["measured"], run.get("deviation")),
                ("–" if off is None else (style.percent(off, sign="+"), 'class="good"' if good else "")),
                f"<small><code>{escape(run['hash'][:12] or '–')}</code></small>",
            ]
        )
    return table(
        (
            ("Run", ""),
            ("Ranks", ""),
            ("Predicted", "± 95%"),
            ("Measured", "median step ± median deviation"),
            ("Error", "predicted/measured − 1"),
            ("Prediction", "hash, written first"),
        ),
        body,
    )


def loss_table(runs):
    body = []
    for run in runs:
        losses = [r["loss"] for r in run.rows if r["loss"] is not None]
        checks = [r["validation_loss"] for r in run.rows if r["validation_loss"] is not None]
        speeds = sorted(r["tokens_per_s"] for r in run.rows if r["tokens_per_s"] is not None)
        body.append(
            [
                escape(run.label),
                f"{run.rows[-1]['step']:,}",
                f"{losses[0]:.3f}" if losses else "–",
                f"{losses[-1]:.3f}" if losses else "–",
                f"{checks[-1]:.3f}" if checks else "–",
                style.number(speeds[len(speeds) // 2], 4) if speeds else "–",
            ]
        )
    return table(
        (
            ("Run", ""),
            ("Steps", ""),
            ("First loss", ""),
            ("Last loss", ""),
            ("Validation", "last"),
            ("Throughput", "tokens/s, median"),
        ),
        body,
    )


def fact(value, text):
    return f'<div class="fact"><b>{value}</b><span>{escape(text)}</span></div>'


def facts(inputs):
    """The three numbers a reader looks for first."""
    found = []
    if inputs.results:
        name, best = methods.ranked(inputs.results)[0]
        found.append(
            fact(
                escape(name),
                f"fastest of {len(inputs.results)}: {style.number(best['samples_per_s'])} samples/s",
            )
            if len(inputs.results) > 1
            else fact(time_cell(best["step_time"], best["ci95"]), f"step time, {name}")
        )
    errors = [abs(prediction.error(r)) for r in inputs.runs if r["measured"] is not None and not r["oversubscribed"]]
    if errors:
        found.append(
            fact(
                style.percent(max(errors)),
                f"largest prediction error of {len(errors)} run{'s' * (len(errors) > 1)}",
            )
        )
    for run in inputs.losses[:1]:
        losses = [r["loss"] for r in run.rows if r["loss"] is not None]
        if len(losses) > 1:
            found.append(
                fact(
                    f"{losses[0]:.2f} → {losses[-1]:.2f}",
                    f"loss of {run.label} over {len(losses)} steps",
                )
            )
    return f'<div class="facts">{"".join(found)}</div>' if found else ""


def notes(inputs):
    """Warnings once each, with the methods they came from."""
    said = {}
    for name, result in methods.ranked(inputs.results):
        for warning in result["warnings"]:
            said.setdefault(warning, []).append(name)
    if not said:
        return ""
    items = "".join(f"<li>{escape(w)} <small>({escape(', '.join(names))})</small></li>" for w, names in said.items())
    return section("Warnings", "What the simulator said about its own results.", f"<ul>{items}</ul>")


def provenance(inputs):
    """Commands, version, fidelity and hashes: what it takes to get the same numbers again."""
    parts = [f"<code>{escape(command)}</code>" for command in dict.fromkeys(inputs.commands)]
    versions = sorted(set(inputs.versions))
    if versions:
        parts.append(f"rehearse {escape(', '.join(versions))}")
    for key, title in (("fidelity", "fidelity"), ("cluster_hash", "cluster")):
        values = sorted({r[key] for r in inputs.results if r[key]})
        if values:
            parts.append(f"{title} {', '.join(f'<code>{escape(v)}</code>' for v in values)}")
    programs = [f"{escape(n)} <code>{escape(r['program_hash'])}</code>" for n, r in methods.ranked(inputs.results) if r["program_hash"]]
    if programs:
        parts.append("programs: " + ", ".join(programs))
    return "; ".join(parts)


def subjects(inputs):
    """What was simulated: each model, batch and cluster once."""
    found = []
    for result in inputs.results:
        if not result["model"]:
            continue
        text = result["model"]
        if result["global_batch"] and result["seq_len"]:
            text += f", {result['global_batch']:,} samples of {result['seq_len']:,} tokens a step"
        if result["precision"]:
            text += f", {result['precision']}"
        if result["cluster"]:
            text += f", on {result['cluster']}"
        if text not in found:
            found.append(text)
    return "; ".join(found)


def page(title, intro, parts, foot):
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,'
        f' initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{CSS}</style>\n</head>\n<body><main>\n<h1>{escape(title)}</h1>\n<p>{intro}</p>\n"
        + "\n".join(p for p in parts if p)
        + f"\n<footer>{foot}</footer>\n</main></body>\n</html>\n"
    )
