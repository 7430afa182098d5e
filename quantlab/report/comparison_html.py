"""The comparison as one HTML file that needs no network: a table, plots as inline SVG, and every complaint."""

from __future__ import annotations

from quantlab.errors import MissingExtraError
from quantlab.evaluation.comparison import Comparison
from quantlab.evaluation.result_row import Row
from quantlab.report.comparison_text import complaints, verdict_words
from quantlab.report.figures import MISSING, change, number, size, with_error
from quantlab.report.plots import comparison_plots
from quantlab.version import __version__

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>quantlab: {{ names | join(", ") }}</title>
<style>
:root { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; }
body { max-width: 84rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .7rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #444; font-weight: 600; }
td.figure, th.figure { text-align: right; }
td.words { white-space: normal; min-width: 12rem; }
td.hash { font-family: ui-monospace, monospace; font-size: .85em; }
td.bad { font-weight: 700; color: #8f1d00; } td.bad::before { content: "\\2717  "; }
td.good::before { content: "\\2713  "; color: #00664a; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(27rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; } figcaption { color: #555; font-size: .9rem; }
.about { color: #555; }
</style>
</head>
<body>
<h1>{{ names | length }} models side by side</h1>
<p class="about">{{ engines | join(", ") }}; {{ gpus | join(", ") or "device not named" }}; quantlab {{ version }}</p>
<div class="scroll"><table>
<thead><tr>{% for title, figure in headers %}<th scope="col"{% if figure %} class="figure"{% endif %}>{{ title }}</th>
{%- endfor %}</tr></thead>
<tbody>
{% for cells in table -%}
<tr>{% for text, kind in cells %}<td{% if kind %} class="{{ kind }}"{% endif %}>{{ text }}</td>{% endfor %}</tr>
{% endfor -%}
</tbody></table></div>
{% if remarks or notes -%}
<h2>What was found</h2>
<ul>
{% for name, kind, words in remarks %}<li><strong>{{ name }}</strong>, {{ kind }}: {{ words }}</li>
{% endfor %}{% for note in notes %}<li>{{ note }}</li>
{% endfor %}</ul>
{% endif -%}
<h2>Plots</h2>
<div class="plots">
{% for plot in plots %}<figure role="img" aria-label="{{ plot.title }}: {{ plot.description }}">
<figcaption><strong>{{ plot.title }}</strong>: {{ plot.description }}</figcaption>
{{ plot.svg | safe }}</figure>
{% endfor %}</div>
<h2>What was loaded</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">model</th><th scope="col">format</th><th scope="col">modules</th>
<th scope="col">kernels</th><th scope="col">sha256 of the weights</th></tr></thead>
<tbody>
{% for name, format, modules, kernels, sha256 in identities -%}
<tr><td>{{ name }}</td><td>{{ format }}</td><td class="words">{{ modules }}</td><td class="words">{{ kernels }}</td>
<td class="hash">{{ sha256 }}</td></tr>
{% endfor -%}
</tbody></table></div>
</body>
</html>
"""

HEADERS = (
    ("model", False), ("verdict", False), ("scheme", False), ("on disk", True), ("peak memory", True),
    ("perplexity", True), ("change", True), ("KL mean", True), ("KL p99", True), ("same top token", True),
    ("prefill ms", True), ("ms a token", True), ("tokens/s", True), ("bandwidth", True),
)  # fmt: skip


def comparison_html(comparison: Comparison) -> str:
    """Return the page.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError("jinja2", "report", "an HTML report") from error
    rows = comparison.rows
    return Environment(autoescape=True).from_string(PAGE).render(
        names=[row.name for row in rows],
        engines=sorted({row.engine for row in rows if row.engine}),
        gpus=sorted({row.gpu for row in rows if row.gpu}),
        version=__version__,
        headers=HEADERS,
        table=[_cells(row) for row in rows],
        identities=[_identity(row) for row in rows],
        remarks=[(row.name, kind, words) for row in rows for kind, words in complaints(row)],
        notes=comparison.notes,
        plots=comparison_plots(comparison),
    )  # fmt: skip


def _cells(row: Row) -> list[tuple[str, str]]:
    point = next((point for point in row.speed if point.batch == 1), row.speed[0] if row.speed else None)
    quality = (
        [
            with_error(row.perplexity, row.perplexity_error),
            change(row.perplexity_change),
            number(row.kl_mean, 4),
            number(row.kl_p99, 3),
            MISSING if row.top1_agreement is None else f"{100 * row.top1_agreement:.1f} %",
        ]
        if row.comparable
        else ["not comparable", *[MISSING] * 4]
    )
    speed = [
        number(point.prefill_ms if point else None, 1),
        number(point.decode_ms_per_token if point else None, 2),
        number(point.decode_tokens_per_second if point else None, 1),
        MISSING if point is None or point.bandwidth_fraction is None else f"{100 * point.bandwidth_fraction:.0f} %",
    ]
    verdict = "" if row.verdict_ok is None else "good" if row.verdict_ok and row.load_ok is not False else "bad"
    figures = [size(row.bytes_on_disk), size(row.peak_bytes), *quality, *speed]
    return [
        (row.name, ""),
        (verdict_words(row), verdict),
        (row.scheme, ""),
        *((text, "figure") for text in figures),
    ]


def _identity(row: Row) -> tuple[str, str, str, str, str]:
    modules = ", ".join(f"{count} {name}" for name, count in row.modules.items()) or MISSING
    kernels = ", ".join(f"{name}: {value}" for name, value in row.kernels.items()) or MISSING
    return row.name, row.format, modules, kernels, row.weights_sha256 or MISSING
