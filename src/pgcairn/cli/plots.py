"""Plots of ``pgcairn bench`` and ``pgcairn tune``, as PNG and SVG. Needs matplotlib (extra ``pgcairn[plots]``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgcairn.errors import InvalidInput


def check() -> None:
    """Fail at once, and not after minutes of measuring, if plots cannot be drawn.

    Raises:
        InvalidInput: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InvalidInput(
            "--out draws plots, which needs matplotlib.", hint="pip install 'pgcairn[plots]'"
        ) from error


def curves(
    target: Path,
    title: str,
    panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[str, float]]]]],
    unit: str,
) -> list[Path]:
    """Draw panels side by side, each with a line for every name; write ``target`` with ``.png`` and ``.svg``.

    Args:
        target: The file without its ending.
        title: Above all panels.
        panels: Of each: what its horizontal axis shows, and the points (label, height) of each line by name.
        unit: Of the vertical axes.
    """
    figure, axes = _figure(len(panels))
    figure.suptitle(title)
    for axis, (name, lines) in zip(axes, panels, strict=True):
        for label, points in lines.items():
            axis.plot([each for each, _ in points], [height for _, height in points], marker="o", label=label)
        axis.set_xlabel(name)
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
        if len(lines) > 1:
            axis.legend()
    axes[0].set_ylabel(unit)
    return _write(figure, target)


def _figure(panels: int) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * panels, 4.0), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    return figure, list(axes)


def _write(figure: Any, target: Path) -> list[Path]:
    written = [target.with_suffix(ending) for ending in (".png", ".svg")]
    for path in written:
        figure.savefig(path, dpi=120)
    return written
