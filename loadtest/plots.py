"""Pictures of a run: requests, latencies, backlog, batches and pool over time. PNG and SVG."""

from __future__ import annotations

from pathlib import Path

from loadtest.results import Run

_FORMATS = ("png", "svg")


def draw(run: Run, path: Path, title: str) -> list[Path]:
    """Write the pictures; their paths.

    Args:
        path: Without the ending.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "pgcairn"  # the same figures, the same file
    from matplotlib import pyplot

    x = [row["second"] for row in run.seconds]

    def series(name: str) -> list[float]:
        return [row.get(name, float("nan")) for row in run.seconds]

    figure, axes = pyplot.subplots(4, 1, sharex=True, figsize=(9, 10), constrained_layout=True)
    figure.suptitle(title)
    rates, latencies, queues, pool = axes
    rates.plot(x, series("offered"), label="offered", color="#888888")
    rates.plot(x, series("served"), label="served", color="#1f77b4")
    rates.plot(x, series("failures"), label="failed", color="#d62728")
    rates.set_ylabel("requests/s")
    for name in ("p50", "p95", "p99"):
        latencies.plot(x, series(f"{name}_ms"), label=name)
    latencies.set_ylabel("ms, from when due")
    latencies.set_yscale("log")
    queues.plot(x, series("waiting"), label="requests without an answer", color="#888888")
    queues.plot(x, series("backlog_rows"), label="backlog, rows", color="#9467bd")
    queues.plot(x, series("batch_rows"), label="rows of a batch", color="#2ca02c")
    queues.set_ylabel("rows, requests")
    pool.plot(x, series("pool_size"), label="sessions", color="#888888")
    pool.plot(x, series("pool_used"), label="of them in use", color="#ff7f0e")
    pool.set_ylabel("sessions")
    pool.set_xlabel("seconds")
    for each in axes:
        each.grid(alpha=0.3)
        each.axvspan(0, run.options["ramp_seconds"], color="#000000", alpha=0.05)
        for fault in run.faults:
            is_restart = fault["what"] == "restart"
            each.axvline(
                fault["at"],
                color="#d62728",
                alpha=0.9 if is_restart else 0.25,
                linewidth=2 if is_restart else 1,
            )
        each.legend(loc="upper left", fontsize="small", ncols=3)
        if each is not latencies:
            each.set_ylim(bottom=0)
    paths = []
    for ending in _FORMATS:
        paths.append(path.with_suffix(f".{ending}"))
        figure.savefig(paths[-1], dpi=110, metadata={"Date": None} if ending == "svg" else None)
    pyplot.close(figure)
    return paths
