"""The comparison's plots as inline SVG, drawn by matplotlib.

Colours are Okabe and Ito's, which stay apart for colour-blind readers; every series has a marker of its own as
well, so that the plots read in grey.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantlab.errors import MissingExtraError
from quantlab.evaluation.comparison import Comparison
from quantlab.evaluation.result_row import Row, SpeedPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure: its title, what it shows in words (for those who cannot see it), and the SVG."""

    title: str
    description: str
    svg: str


def comparison_plots(comparison: Comparison) -> list[Plot]:
    """Return the plots that the results have figures for."""
    rows = comparison.rows
    look = {row.name: number for number, row in enumerate(rows)}
    drawn = [
        _size_plot([row for row in rows if row.comparable and row.perplexity and row.bytes_on_disk], look),
        _speed_plot(
            rows,
            "Decode throughput against batch",
            ("batch", "new tokens per second"),
            lambda point: (point.batch, point.decode_tokens_per_second),
        ),
        _speed_plot(
            rows,
            "Prefill latency against prompt length",
            ("prompt tokens", "prefill, ms (batch 1)"),
            lambda point: (point.prompt_tokens, point.prefill_ms if point.batch == 1 else None),
        ),
        _divergence_plot([row for row in rows if row.comparable and row.kl_mean is not None]),
        _probe_plot([row for row in rows if row.layers], look),
    ]
    return [plot for plot in drawn if plot is not None]


def _size_plot(rows: Sequence[Row], look: Mapping[str, int]) -> Plot | None:
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        for row in rows:
            megabytes = (row.bytes_on_disk or 0) / 1e6
            axes.errorbar(
                [megabytes],
                [row.perplexity or 0.0],
                yerr=[row.perplexity_error or 0.0],
                capsize=3,
                **_look(look[row.name]),
            )
            axes.annotate(row.name, (megabytes, row.perplexity or 0.0), xytext=(8, 6), textcoords="offset points")
        axes.set(xlabel="weights on disk, MB", ylabel="perplexity ± standard error")
        axes.margins(0.2)

    return _plot("Perplexity against size", "lower and further left is better", draw)


def _speed_plot(
    rows: Sequence[Row],
    title: str,
    labels: tuple[str, str],
    choose: Callable[[SpeedPoint], tuple[int, float | None]],
) -> Plot | None:
    series = {row.name: sorted((x, y) for x, y in map(choose, row.speed) if y is not None) for row in rows}
    if not any(series.values()):
        return None

    def draw(axes: Axes) -> None:
        for number, (name, points) in enumerate(series.items()):
            if points:
                axes.plot([x for x, _ in points], [y for _, y in points], label=name, **_look(number))
        ticks = sorted({x for points in series.values() for x, _ in points})
        if len(ticks) > 1 and ticks[-1] >= 8 * ticks[0]:
            axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.set_ylim(bottom=0)
        axes.legend()

    return _plot(title, f"{labels[1]} against {labels[0]}, one line a model", draw)


def _divergence_plot(rows: Sequence[Row]) -> Plot | None:
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        places = range(len(rows))
        axes.bar(
            [place - 0.2 for place in places], [row.kl_mean or 0 for row in rows], 0.4, label="mean", color=COLOURS[0]
        )
        axes.bar(
            [place + 0.2 for place in places], [row.kl_p99 or 0 for row in rows], 0.4, label="99th percentile",
            color=COLOURS[1], hatch="//",
        )  # fmt: skip
        axes.set_xticks(list(places), [row.name for row in rows])
        axes.set(ylabel="KL divergence from the original, nats a token")
        axes.legend()

    return _plot("Divergence from the original", "lower is better; zero is the original itself", draw)


def _probe_plot(rows: Sequence[Row], look: Mapping[str, int]) -> Plot | None:
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        for row in rows:
            share = [max(layer.relative_error / layer.allowed, 1e-6) for layer in row.layers if layer.allowed > 0]
            axes.plot(range(len(share)), share, label=row.name, linestyle="", **_look(look[row.name], size=3))
        axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
        axes.set_yscale("log")
        axes.set(xlabel="quantized layer, in file order", ylabel="probe error over what the scheme allows")
        axes.legend()

    return _plot("Layer probe", "each point is a layer; above the dashed line it does not do what the file says", draw)


def _look(number: int, size: int = 6) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": size}


def _plot(title: str, description: str, draw: Callable[[Axes], None]) -> Plot:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report", "an HTML report") from error
    style = {"svg.fonttype": "none", "svg.hashsalt": "quantlab", "font.family": "sans-serif", "font.size": 10}
    with rc_context(style):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Title": title})
    text = buffer.getvalue()
    return Plot(title, description, text[text.index("<svg") :])
