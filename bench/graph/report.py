# SPDX-License-Identifier: Apache-2.0
"""Tables, targets and plots of what bench/graph/run.py has measured: for the terminal, and for docs/PERFORMANCE.md, where
tables stand between "<!-- bench graph-... -->" and "<!-- end -->" and plots in docs/performance.

Tests: tests/tools/test_graph_report.py.
"""
import json
import os
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
from bench_report import plot, replace  # noqa: E402

MOVING = ("zerocopy shm", "copy shm", "rpc shm", "zerocopy tcp", "copy tcp", "rpc tcp", "grpc plain", "grpc tuned")
TRAINING = ("zerocopy", "copy", "rpc", "grpc plain", "grpc tuned")
NAMES = {"grpc plain": "gRPC plain", "grpc tuned": "gRPC tuned", "zerocopy": "zero-copy shm", "copy": "copy shm", "rpc": "rpc tcp",
         "none": "no bytes"}
BIG = ("fcn5", "alexnet", "vgg16")  # whose exposed time has a target
NOISE = 1.03  # a step this much longer than another is not slower: single runs of a few steps


def load(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


# ---- what the rows say ----

def moving_of(rows):
    """{(way, MiB): row}"""
    return {(r["way"], r["MiB"]): r for r in rows if r["kind"] == "moving"}


def training_of(rows):
    """[(model, workers, {way: medians over rounds}, {way: why left out})] in the order of the rows"""
    groups = {}
    for r in rows:
        if r["kind"] in ("run", "left_out"):
            runs, left = groups.setdefault((r["model"], r["workers"]), ({}, {}))
            if r["kind"] == "run":
                runs.setdefault(r["way"], []).append(r)
            else:
                left[r["way"]] = r["reason"]
    out = []
    for (model, workers), (runs, left) in groups.items():
        mid = {}
        for way, of_way in runs.items():
            mid[way] = {k: statistics.median(r[k] for r in of_way) for k in ("step_seconds", "cpu_seconds", "rows")}
            mid[way]["loss"] = of_way[0]["loss"]
            mid[way]["rounds"] = {r["round"]: r["step_seconds"] for r in of_way}
        if "none" in mid:
            for way, m in mid.items():
                m["exposed"] = m["step_seconds"] - mid["none"]["step_seconds"]
                m["comm_cpu"] = m["cpu_seconds"] - mid["none"]["cpu_seconds"]
        out.append((model, workers, mid, {w: why for w, why in left.items() if w not in mid}))
    return out


def ratio(a, b):
    return a / b if a is not None and b else None


def least_ratio(pairs):
    """(worst ratio, where) of (where, ratio) pairs that are known"""
    known = [(r, where) for where, r in pairs if r is not None]
    return min(known) if known else (None, None)


def exposed_ratio(mid):
    """gRPC plain's exposed time to zero-copy's; below a thousandth of the step it counts as a thousandth."""
    if "exposed" not in mid.get("zerocopy", {}) or "exposed" not in mid.get("grpc plain", {}):
        return None
    return mid["grpc plain"]["exposed"] / max(mid["zerocopy"]["exposed"], 1e-3 * mid["none"]["step_seconds"])


def rivals(mid):
    """{way: step to zero-copy's}, medians of the ratios within rounds: cores move between rounds, and all ways with them."""
    zero, out = mid.get("zerocopy", {}).get("rounds", {}), {}
    for way in TRAINING:
        ratios = [step / zero[turn] for turn, step in mid.get(way, {}).get("rounds", {}).items() if turn in zero]
        if way != "zerocopy" and ratios:
            out[way] = statistics.median(ratios)
    return out


def targets(rows):
    """[(target, bound, worst value or None, where)]: a value of at least the bound holds."""
    moving, training = moving_of(rows), training_of(rows)
    zero = {mib: r for (way, mib), r in moving.items() if way == "zerocopy shm"}

    def against(way, least):
        return least_ratio((f"{mib} MiB", ratio(moving.get((way, mib), {}).get("ms"), r["ms"])) for mib, r in zero.items()
                           if mib >= least)

    slower = []
    for model, workers, mid, _ in training:
        for way, to_zero in rivals(mid).items():
            slower.append((f"{model}, {workers} workers, {NAMES[way]}", to_zero))
    return [
        ("one tensor from 4 MiB: gRPC plain to zero-copy shm", 10, *against("grpc plain", 4)),
        ("one tensor from 4 MiB: gRPC tuned to zero-copy shm", 3, *against("grpc tuned", 4)),
        ("zero-copy shm to the bare copy between two processes", 0.85,
         *least_ratio((f"{mib} MiB", ratio(r["bare_ms"], r["ms"])) for mib, r in zero.items())),
        ("zero-copy shm to memcpy within one core", 0.85,
         *least_ratio((f"{mib} MiB", ratio(r["memcpy_ms"], r["ms"])) for mib, r in zero.items())),
        ("exposed time of FCN-5, AlexNet, VGG-16: gRPC plain to zero-copy", 8,
         *least_ratio((f"{model}, {workers} workers", exposed_ratio(mid)) for model, workers, mid, _ in training if model in BIG)),
        ("steps: best other way to zero-copy", 1 / NOISE, *least_ratio(slower)),
    ]


# ---- tables ----

def number(value, digits=3):
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def table(header, rows):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "|".join("---" if i == 0 else "---:" for i in range(len(header))) + "|"]
                     + ["| " + " | ".join(row) + " |" for row in rows])


def head_text(rows):
    h = next(r for r in rows if r["kind"] == "head")
    waits = {r["waits"] for r in rows if "waits" in r}
    return (f'{h["cpus"]} cores of {h["cpu"]}, {h["memory"] >> 30} GiB, Linux {h["kernel"]}, {h["time"]}; processes '
            f'{" and ".join(sorted(waits))} when they wait.')


def moving_table(rows):
    moving = moving_of(rows)
    sizes = sorted({mib for _, mib in moving})
    out = []
    for way in MOVING:
        for mib in sizes:
            r = moving.get((way, mib))
            if not r:
                out.append([NAMES.get(way, way), str(mib), "left out"] + [""] * 6)
                continue
            out.append([NAMES.get(way, way), str(mib), number(r["ms"]), number(mib * 1.048576 / r["ms"]),
                        number(ratio(r["memcpy_ms"], r["ms"]), 2), number(ratio(r["bare_ms"], r["ms"]), 2),
                        number(ratio(moving.get(("grpc plain", mib), {}).get("ms"), r["ms"])),
                        number(ratio(moving.get(("grpc tuned", mib), {}).get("ms"), r["ms"])),
                        number(r["sender_cpu_ms"] + r["receiver_cpu_ms"])])
    return table(("way", "MiB", "ms", "GB/s", "of memcpy", "of a bare copy", "gRPC plain to it", "gRPC tuned to it", "CPU ms"), out)


def training_table(rows):
    out = []
    for model, workers, mid, left in training_of(rows):
        for way in ("none", *TRAINING):
            label = [model, str(workers), NAMES[way]]
            if way not in mid:
                if way in left:
                    out.append(label + [f"left out: {left[way]}"] + [""] * 5)
                continue
            m = mid[way]
            plain = mid.get("grpc plain", {}).get("step_seconds")
            out.append(label + [number(1e3 * m["step_seconds"]), number(m["rows"] / m["step_seconds"]),
                                number(ratio(plain, m["step_seconds"])) if way != "none" else "",
                                number(1e3 * m["exposed"]) if way != "none" and "exposed" in m else "",
                                number(1e3 * m["comm_cpu"]) if way != "none" and "comm_cpu" in m else "",
                                number(exposed_ratio(mid)) if way == "zerocopy" else ""])
    return table(("model", "workers", "way", "step ms", "rows/s", "gRPC plain to it", "exposed ms", "communication CPU ms",
                  "exposed: gRPC plain to it"), out)


def targets_table(rows):
    out = []
    for name, bound, value, where in targets(rows):
        verdict = "not measured" if value is None else "**yes**" if value >= bound else "no"
        out.append([name, f"{bound:.2f}", verdict, number(value), where or ""])
    return table(("target", "at least", "holds", "worst", "where"), out)


def text(rows):
    return "\n\n".join((moving_table(rows), training_table(rows), targets_table(rows)))


# ---- plots ----

def tsv(path, header, rows):
    with open(path, "w", encoding="utf-8") as file:
        for row in [header, *rows]:
            file.write("\t".join("NaN" if v is None else str(v).replace(" ", "_") for v in row) + "\n")


START = 'set terminal svg size 760,420 font "sans-serif,12" background "white"\nset output "{0}.svg"\nset grid ytics\n' \
        'set datafile missing "NaN"\nset key outside right\n'


def moving_plot(rows, out):
    moving = moving_of(rows)
    sizes = sorted({mib for _, mib in moving})
    if len(sizes) < 2:
        return None
    lines = [(NAMES.get(w, w), [moving.get((w, s), {}).get("ms") for s in sizes]) for w in MOVING]
    for key, name in (("bare_ms", "bare copy"), ("memcpy_ms", "memcpy")):
        lines.append((name, [moving.get(("zerocopy shm", s), {}).get(key) for s in sizes]))
    tsv(os.path.join(out, "graph-moving.tsv"), ["MiB"] + [n for n, _ in lines],
        [[s] + [values[i] for _, values in lines] for i, s in enumerate(sizes)])
    curves = ", ".join(f'"graph-moving.tsv" using 1:{i + 2} with linespoints lw {2.5 if i == 0 else 1.2} title "{n}"'
                       for i, (n, _) in enumerate(lines))
    script = START.format("graph-moving") + ('set logscale xy\nset xlabel "MiB of a tensor"\nset ylabel "ms"\n'
                                             f'set title "one tensor to another process and the news of it back"\nplot {curves}\n')
    return "graph-moving" if plot(script, out) else None


def training_plot(rows, out, workers):
    """Rows per second of each way, gRPC plain being 1; or the tuned one, where plain was left out."""
    name, data = f"graph-training-{workers}", []
    for model, of, mid, _ in training_of(rows):
        base = mid.get("grpc plain") or mid.get("grpc tuned")
        if of == workers and base:
            data.append([model] + [ratio(base["step_seconds"], mid.get(w, {}).get("step_seconds")) for w in TRAINING])
    if not data:
        return None
    tsv(os.path.join(out, name + ".tsv"), ["model", *[NAMES[w] for w in TRAINING]], data)
    bars = ", ".join(f'"{name}.tsv" using {i + 2}{":xtic(1)" if i == 0 else ""} title "{NAMES[w]}"' for i, w in enumerate(TRAINING))
    script = START.format(name) + ('set style data histograms\nset style fill solid 0.8\nset boxwidth 0.9\nset yrange [0:*]\n'
                                   f'set xtics noenhanced\nset ylabel "throughput, gRPC plain = 1"\nset title "training with '
                                   f'{workers} worker{"s" if workers > 1 else ""} and 2 servers"\nplot {bars}\n')
    return name if plot(script, out) else None


def document(rows):
    out = os.path.join(ROOT, "docs", "performance")
    path = os.path.join(ROOT, "docs", "PERFORMANCE.md")
    os.makedirs(out, exist_ok=True)
    plots = [moving_plot(rows, out)] + [training_plot(rows, out, w)
                                        for w in sorted({r["workers"] for r in rows if r["kind"] == "run"})]
    with open(path, encoding="utf-8") as file:
        page = file.read()
    page = replace(page, "graph-targets", head_text(rows) + "\n\n" + targets_table(rows))
    page = replace(page, "graph-moving", moving_table(rows))
    page = replace(page, "graph-training", training_table(rows))
    page = replace(page, "graph-plots", "\n".join(f"![{p}](performance/{p}.svg)" for p in plots if p))
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
    print(targets_table(rows))
    return 0
