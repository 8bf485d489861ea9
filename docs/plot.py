#!/usr/bin/env python3
"""Draws what gpuvm wrote as JSON: a report of `gpuvm bench ... --json` as bars beside their ceilings, a profile of `gpuvm profile ... --json`
as heat maps of the pages over time. Needs matplotlib (pip install matplotlib).

    gpuvm bench faults --json | docs/plot.py - faults.svg
    gpuvm profile bfs kron:16 --json bfs.json && docs/plot.py bfs.json bfs.svg      # or .png, .pdf
"""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - the back end is chosen first


def label(row):
    """A row's name and its parameters."""
    more = ", ".join(f"{key} {value}" for key, value in (row.get("parameters") or {}).items())
    return f"{row['name']} ({more})" if more else row["name"]


def bars(report):
    """A group of bars for each unit; the mark across a bar is its ceiling of the same run."""
    rows = [row for row in report["rows"] if row.get("figure") is not None]
    units = list(dict.fromkeys(row["unit"] for row in rows))
    counts = [sum(row["unit"] == unit for row in rows) for unit in units]
    figure, axes = plt.subplots(len(units), 1, squeeze=False, figsize=(11, 1 + 0.3 * sum(counts) + len(units)), height_ratios=counts)
    figure.suptitle(f"gpuvm bench {report['bench']} on {report['machine']['gpu']} ({report['machine']['transport']})")
    for unit, axis in zip(units, axes[:, 0]):
        of_unit = [row for row in rows if row["unit"] == unit]
        drawn = axis.barh([label(row) for row in of_unit], [row["figure"] for row in of_unit], color="#3b6ea5")
        shares = [f" {100 * row['ratio']:.0f} %" if row.get("ratio") else "" for row in of_unit]
        axis.bar_label(drawn, shares)
        ceilings = [(at, row["ceiling"]) for at, row in enumerate(of_unit) if row.get("ceiling")]
        axis.scatter([c for _, c in ceilings], [at for at, _ in ceilings], marker="|", s=200, color="#c8452b", label="ceiling")
        axis.set_xlabel(unit)
        axis.invert_yaxis()
    return figure


def heat_maps(profile):
    """For each region the share of its pages in frames and its fetches, time from left to right, and how its pages were used."""
    regions = profile["regions"]
    figure, axes = plt.subplots(len(regions), 3, squeeze=False, figsize=(14, 1 + 3 * len(regions)), width_ratios=[4, 4, 1])
    figure.suptitle(f"{profile['program']}: {profile['samples']} samples")
    for region, (resident, fetches, used) in zip(regions, axes):
        columns, buckets = region["columns"], region["buckets"]
        end = columns[-1]["end_seconds"] if columns else 0
        for axis, name, colours in ((resident, "resident", "Blues"), (fetches, "fetches", "Reds")):
            cells = [[value / max(column["samples"], 1) for value in column[name]] for column in columns]
            extent = (0, end, region["pages"], 0)
            axis.imshow(list(zip(*cells)) or [[0]], aspect="auto", cmap=colours, extent=extent, interpolation="nearest", vmin=0)
            axis.set_title(f"{region['name']}: {name}")
            axis.set_xlabel("s")
        share = lambda part, of: [bucket[part] / max(bucket[of], 1) for bucket in buckets]  # noqa: E731
        strips = [share("referenced", "resident"), share("dirty", "resident"), share("bytes_in_place", "pages")]
        most = [max(strip, default=0) or 1 for strip in strips]
        used.imshow(
            [[strip[at] / top for strip, top in zip(strips, most)] for at in range(len(buckets))] or [[0]],
            aspect="auto",
            cmap="Greens",
            interpolation="nearest",
            vmin=0,
        )
        used.set_xticks(range(3), ["in use", "written", "in place"], rotation=45)
        used.set_yticks([])
    return figure


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = sys.argv[1:]
    try:
        with sys.stdin if source == "-" else open(source) as file:
            data = json.load(file)
        figure = heat_maps(data) if "regions" in data else bars(data)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{source} is no report of gpuvm in JSON: {error!r}")
    figure.savefig(target, bbox_inches="tight")


if __name__ == "__main__":
    main()
