"""The matrix as one HTML page without network: every cell tells its reason, kernel and sources."""

from __future__ import annotations

from quantlab.errors import MissingExtraError
from quantlab.matrix.table import Table
from quantlab.report.matrix_symbols import MEANINGS, SYMBOLS, column_groups, footnote

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>quantlab: what runs where</title>
<style>
:root { font: 15px/1.45 system-ui, sans-serif; color: #1b1b1b; background: #fff; }
body { max-width: 90rem; margin: 2rem auto; padding: 0 1.5rem; }
.scroll { overflow-x: auto; margin-bottom: 2rem; }
table { border-collapse: collapse; }
th, td { border: 1px solid #ccc; padding: .3rem .6rem; text-align: center; vertical-align: top; }
thead th { font-weight: 500; font-size: .85em; white-space: pre; } tbody th { text-align: left; white-space: nowrap; }
td { font-family: ui-monospace, monospace; cursor: help; }
td.works { background: #d7efe4; } td.works-with-fallback { background: #fdf0c2; }
td.fails { background: #f6d5c8; } td.silent-wrong-result { background: #8f1d00; color: #fff; }
td.unknown { color: #777; }
</style>
</head>
<body>
<h1>What runs where</h1>
<p>{% for outcome, meaning in meanings.items() %}<code>{{ symbols[outcome] }}</code> {{ meaning }}
{%- if not loop.last %}; {% endif %}{% endfor %}. Point at a cell for its reason.</p>
{% for title, groups, rows in engines -%}
<h2>{{ title }}</h2>
<div class="scroll"><table>
<thead><tr><th></th>{% for group in groups %}<th scope="col">{{ group | join("\n") }}</th>{% endfor %}</tr></thead>
<tbody>
{% for method, cells in rows -%}
<tr><th scope="row">{{ method }}</th>
{% for outcome, told in cells %}<td class="{{ outcome }}" title="{{ told }}">{{ symbols[outcome] }}</td>
{%- endfor %}</tr>
{% endfor -%}
</tbody></table></div>
{% endfor -%}
</body>
</html>
"""


def matrix_html(table: Table) -> str:
    """Return the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError("jinja2", "report", "an HTML page") from error
    engines = []
    for engine, title in table.engines.items():
        rows = list(table.rows(engine))
        groups = column_groups(table, engine)
        places = [table.gpus.index(group[0]) for group in groups]
        body = [
            (table.methods[method], [_told(table, engine, method, place) for place in places]) for method, _ in rows
        ]
        if body:
            engines.append((title, groups, body))
    return Environment(autoescape=True).from_string(PAGE).render(engines=engines, symbols=SYMBOLS, meanings=MEANINGS)


def _told(table: Table, engine: str, method: str, place: int) -> tuple[str, str]:
    cell = table.cell(engine, method, table.gpus[place])
    parts = [
        cell.reason,
        f"kernel: {cell.kernel}" if cell.kernel else "",
        footnote(cell),
        f"way out: {cell.fix}" if cell.fix else "",
        f"{cell.confidence}: {', '.join(cell.sources)}" if cell.sources else "",
    ]
    return cell.outcome, "\n".join(part for part in parts if part)
