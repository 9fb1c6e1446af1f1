"""Writes the dashboard: `python3 deploy/grafana/build.py`. One line a panel; Grafana's own form is too long to edit."""

import json
from pathlib import Path
from typing import Any

S = 'job=~"$job",instance=~"$instance"'
RATE = "$__rate_interval"

# Title, what it tells, unit, stacked or not, and the queries with their legends. A title alone begins a row.
PANELS: list[tuple[Any, ...]] = [
    ("Hits",),
    (
        "Hit rate by tier",
        "Share of the reads that each tier served.",
        "percentunit",
        True,
        [
            (
                f"sum by (tier) (rate(slackwater_hits_total{{{S}}}[{RATE}])) / scalar(sum(rate(slackwater_hits_total{{{S}}}[{RATE}]))"
                f" + sum(rate(slackwater_misses_total{{{S}}}[{RATE}])))",
                "{{tier}}",
            )
        ],
    ),
    ("Bytes served", "From each tier.", "Bps", True, [(f"sum by (tier) (rate(slackwater_hit_bytes_total{{{S}}}[{RATE}]))", "{{tier}}")]),
    (
        "Time of a value, p50 and p99",
        "By the call and the tier.",
        "s",
        False,
        [
            (f"histogram_quantile({q}, sum by (le, op, tier) (rate(slackwater_call_seconds_bucket{{{S}}}[{RATE}])))", f"{{{{op}}}} {{{{tier}}}} p{q[2:]}")
            for q in ("0.50", "0.99")
        ],
    ),
    (
        "Parts of reads, p50 and p99",
        "Look-ups, the wait before the SSD, the SSD, and the way to a client of what was read there.",
        "s",
        False,
        [
            (f"histogram_quantile({q}, sum by (le, phase) (rate(slackwater_read_phase_seconds_bucket{{{S}}}[{RATE}])))", f"{{{{phase}}}} p{q[2:]}")
            for q in ("0.50", "0.99")
        ],
    ),
    ("Puts", "By how they ended.", "ops", True, [(f"sum by (status) (rate(slackwater_puts_total{{{S}}}[{RATE}]))", "{{status}}")]),
    ("Space",),
    (
        "Fill of the tiers",
        "Used part of the capacity.",
        "percentunit",
        False,
        [(f"sum by (tier) (slackwater_used_bytes{{{S}}}) / (sum by (tier) (slackwater_capacity_bytes{{{S}}}) > 0)", "{{tier}}")],
    ),
    (
        "Fill of nodes",
        "Each tier of each node of a pool.",
        "percentunit",
        False,
        [(f"slackwater_node_used_bytes{{{S}}} / (slackwater_node_capacity_bytes{{{S}}} > 0)", "node {{node}} {{tier}}")],
    ),
    ("Objects", "How many there are.", "short", False, [(f"sum(slackwater_objects{{{S}}})", "objects")]),
    ("Nodes and clients", "Those with a link, and nodes without one.", "short", False, [(f"sum by (presence) (slackwater_nodes{{{S}}})", "nodes {{presence}}"), (f"sum(slackwater_clients{{{S}}})", "clients")]),
    ("Movement between the tiers",),
    ("Evictions", "Replicas that left a tier.", "ops", True, [(f"sum by (tier) (rate(slackwater_evictions_total{{{S}}}[{RATE}]))", "{{tier}}")]),
    ("Offloads", "Writes to SSD, by how they ended.", "ops", True, [(f"sum by (status) (rate(slackwater_offloads_total{{{S}}}[{RATE}]))", "{{status}}")]),
    ("Offloads not begun", "By why.", "ops", True, [(f"sum by (status) (rate(slackwater_offloads_skipped_total{{{S}}}[{RATE}]))", "{{status}}")]),
    ("Promotions", "By how they ended.", "ops", True, [(f"sum by (status) (rate(slackwater_promotions_total{{{S}}}[{RATE}]))", "{{status}}")]),
    ("Promotions refused", "Reads that earned none, by the gate.", "ops", True, [(f"sum by (status) (rate(slackwater_promotions_rejected_total{{{S}}}[{RATE}]))", "{{status}}")]),
    (
        "Under way",
        "Offloads and promotions at this moment.",
        "short",
        False,
        [(f"sum(slackwater_offloads_in_flight{{{S}}})", "offloads"), (f"sum(slackwater_promotions_in_flight{{{S}}})", "promotions")],
    ),
    ("The eviction rule", "The rule that evictions follow, by tier.", "short", False, [(f"max by (tier, rule) (slackwater_eviction_rule_followed{{{S}}}) > 0", "{{tier}} {{rule}}")]),
    ("SSD",),
    (
        "Bytes of the device",
        "Read and written.",
        "Bps",
        False,
        [(f"sum(rate(slackwater_ssd_read_bytes_total{{{S}}}[{RATE}]))", "read"), (f"sum(rate(slackwater_ssd_written_bytes_total{{{S}}}[{RATE}]))", "written")],
    ),
    ("Reads slowed by writes", "Time of reads over what they take alone.", "short", False, [(f"max by (instance) (slackwater_ssd_read_slowdown_ratio{{{S}}})", "{{instance}}")]),
    ("Corrupt replicas", "Found, and none returned.", "short", False, [(f"sum(increase(slackwater_corrupt_total{{{S}}}[{RATE}]))", "corrupt")]),
    ("Waits", "Times that a caller slept in the kernel, by what for.", "ops", True, [(f"sum by (site) (rate(slackwater_wait_parks_total{{{S}}}[{RATE}]))", "{{site}}")]),
]

SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel(number: int, at: tuple[int, int], spec: tuple[Any, ...]) -> dict[str, Any]:
    """One chart, half as wide as the page."""
    title, note, unit, stacked, queries = spec
    custom = {"fillOpacity": 25 if stacked else 0, "stacking": {"mode": "normal" if stacked else "none"}, "showPoints": "never"}
    targets = [{"refId": chr(65 + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend} for i, (expr, legend) in enumerate(queries)]
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": note,
        "datasource": SOURCE,
        "gridPos": {"x": at[0], "y": at[1], "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def variable(name: str, label: str) -> dict[str, Any]:
    """A choice of the values of a label."""
    query = f"label_values(slackwater_objects, {name})"
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2, "multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"}}


def dashboard() -> dict[str, Any]:
    """The whole dashboard."""
    panels: list[dict[str, Any]] = []
    x, y = 0, 0
    for number, spec in enumerate(PANELS, start=1):
        if len(spec) == 1:
            y += 8 if x else 0
            panels.append({"id": number, "type": "row", "title": spec[0], "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
            x, y = 0, y + 1
            continue
        panels.append(panel(number, (x, y), spec))
        x, y = (12, y) if x == 0 else (0, y + 8)
    source = {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "slackwater",
        "title": "Slackwater",
        "schemaVersion": 39,
        "tags": ["slackwater"],
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, variable("job", "Job"), variable("instance", "Instance")]},
        "panels": panels,
    }


if __name__ == "__main__":
    Path(__file__).with_name("slackwater.json").write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
