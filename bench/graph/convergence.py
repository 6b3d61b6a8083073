#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What communication is worth to who waits for a model: loss against time, zero-copy against gRPC, on real data.

Usage: bench/graph/convergence.py BUILD [options]     (./dev bench convergence)

Three models are trained, each in three ways with the same seed, two workers and two servers, --sync:

  convnet    Fashion-MNIST: loss
  charlm     the bible, bytes: perplexity
  seq2seq    German catalogues of gnupg-l10n and libc-l10n: perplexity

The losses of all steps must be the same bits in every way: then the curves differ in their time axis alone. Writes the part
of docs/PERFORMANCE.md between "<!-- bench convergence -->" and "<!-- end -->", and docs/performance/convergence-*.{tsv,svg}; every
job is a line in a file, so that the whole can be done in pieces (--only, then --report). Batches are small: it is where the
time goes in a step that is compared, and with larger ones communication is a smaller part of it.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report  # noqa: E402
import run  # noqa: E402

ROOT = report.ROOT
# name: (what is learned, options, steps, is the loss a perplexity, rows per worker)
JOBS = {
    "convnet": ("Fashion-MNIST", ("--model", "convnet", "--batch", 8, "--lr", 0.01), 1000, False),
    "charlm": ("the bible, bytes", ("--model", "charlm", "--batch", 4, "--length", 32, "--lr", 0.004), 900, True),
    "seq2seq": ("gnupg-l10n and libc-l10n, English to German", ("--model", "seq2seq", "--batch", 8, "--lr", 0.001), 600, True),
}
WAYS = (("zerocopy", ("--comm", "zerocopy", "--transport", "shm"), {}),
        ("grpc tuned", ("--comm", "grpc"), {"TERN_GRAPH_GRPC_WAY": "tuned"}),
        ("grpc plain", ("--comm", "grpc"), {"TERN_GRAPH_GRPC_WAY": "plain"}))
SMOOTH = 0.02  # of a step in the running mean that is drawn
POINTS = 200   # of a curve in the files


def read_losses(path):
    with open(path, encoding="ascii") as file:
        return [line.split()[1] for line in file]


def read_curve(path):
    """[(seconds, loss)]"""
    with open(path, encoding="ascii") as file:
        return [tuple(map(float, line.split("\t")[1:])) for line in file]


def train(build, name, way, steps):
    _, args, env = way
    what, job, own_steps, _ = JOBS[name]
    with tempfile.TemporaryDirectory(prefix="tern-convergence-") as folder:
        # Servers wait for the evaluation too, so long on a busy host.
        command = [f"{build}/cli/tern", "train", "--quiet", "--json", "--sync", "--timeout", 600, "--steps", steps or own_steps,
                   "--losses", f"{folder}/losses", "--curve", f"{folder}/curve", *job, *args]
        out, error = run.run_job(list(map(str, command)), env, 900)
        if error:
            sys.exit(f"convergence: {name}, {way[0]}: {error}")
        result = json.loads(out)
        return {"kind": "job", "model": name, "way": way[0], "losses": read_losses(f"{folder}/losses"),
                "curve": read_curve(f"{folder}/curve"), "seconds": result["seconds"], "accuracy": result["accuracy"],
                "perplexity": result.get("perplexity"), "parameters": result["parameters"], "transport": result["transport"],
                "waits": "block"}


# ---- what the rows say ----

def jobs_of(rows):
    """{model: {way: row}} in the order of JOBS: the latest of each."""
    found = {}
    for row in rows:
        if row["kind"] == "job":
            found.setdefault(row["model"], {})[row["way"]] = row
    return {name: found[name] for name in JOBS if name in found}


def same_bits(of_way):
    return len({tuple(row["losses"]) for row in of_way.values()}) == 1


def smooth(curve, is_perplexity):
    """The running mean of the losses, which begins as the mean of what there is; at most POINTS of it."""
    points, mean, weight = [], 0.0, 0.0
    every = max(1, len(curve) // POINTS)
    for i, (seconds, loss) in enumerate(curve):
        mean, weight = mean * (1 - SMOOTH) + loss * SMOOTH, weight * (1 - SMOOTH) + SMOOTH
        if i % every == every - 1 or i == len(curve) - 1:
            points.append((i + 1, seconds, math.exp(mean / weight) if is_perplexity else mean / weight))
    return points


def table(rows):
    out = []
    for name, of_way in jobs_of(rows).items():
        plain = of_way.get("grpc plain", {}).get("seconds")
        for way, _, _ in WAYS:
            row = of_way.get(way)
            if not row:
                continue
            steps = len(row["losses"])
            _, _, end = smooth(row["curve"], JOBS[name][3])[-1]
            held = row["perplexity"] if JOBS[name][3] else 100 * row["accuracy"]
            out.append([name, report.NAMES[way], f"{steps:,}", report.number(1e3 * row["seconds"] / steps), f"{row['seconds']:.1f}",
                        report.number(plain / row["seconds"]) if plain else "", f"{end:.2f}" if JOBS[name][3] else f"{end:.3f}",
                        f"{held:.2f}" + ("" if JOBS[name][3] else " %"), "yes" if same_bits(of_way) else "**no**"])
    return report.table(("model", "way", "steps", "ms a step", "s to the end", "gRPC plain to it", "loss or perplexity", "held out", "same bits"),
                        out)


# ---- files ----

def figure(name, of_way, out):
    what, _, _, is_perplexity = JOBS[name]
    base = f"convergence-{name}"
    blocks = []
    for way, _, _ in WAYS:
        if way in of_way:
            blocks.append((way, smooth(of_way[way]["curve"], is_perplexity)))
    with open(os.path.join(out, base + ".tsv"), "w", encoding="utf-8") as file:
        file.write("way\tstep\tseconds\t" + ("perplexity" if is_perplexity else "loss") + "\n")
        for way, points in blocks:
            file.write("".join(f"{report.NAMES[way].replace(' ', '_')}\t{step}\t{seconds:.3f}\t{value:.6g}\n" for step, seconds, value in points))
            file.write("\n\n")
    lines = ", ".join(f'"{base}.tsv" {"every ::1 " if i == 0 else ""}index {i} using 3:4 with lines lw {2.5 if i == 0 else 1.4} '
                      f'title "{report.NAMES[way]}"' for i, (way, _) in enumerate(blocks))
    script = report.START.format(base) + (f'set xlabel "seconds"\nset ylabel "{"perplexity" if is_perplexity else "loss"}"\n'
                                          f'{"set logscale y" if is_perplexity else ""}\nset title "{name}: {what}"\nplot {lines}\n')
    return base if report.plot(script, out) else None


def document(rows):
    out, path = os.path.join(ROOT, "docs", "performance"), os.path.join(ROOT, "docs", "PERFORMANCE.md")
    plots = [figure(name, of_way, out) for name, of_way in jobs_of(rows).items()]
    with open(path, encoding="utf-8") as file:
        page = file.read()
    body = "\n\n".join((report.head_text(rows), table(rows), "\n".join(f"![{p}](performance/{p}.svg)" for p in plots if p)))
    with open(path, "w", encoding="utf-8") as file:
        file.write(report.replace(page, "convergence", body))


def parse(argv):
    p = argparse.ArgumentParser(prog="./dev bench convergence", description="loss against time, zero-copy against gRPC")
    p.add_argument("build", help="folder of a release build")
    p.add_argument("--only", default=",".join(JOBS), help="some of the models")
    p.add_argument("--steps", type=int, help="of each job, instead of its own")
    p.add_argument("--file", help="where the jobs are lines (BUILD/bench-convergence.jsonl)")
    p.add_argument("--report", action="store_true", help="measure nothing, make tables and plots of the file")
    p.add_argument("--no-document", action="store_true", help="only measure and print")
    options = p.parse_args(argv)
    options.only = options.only.split(",")
    options.file = options.file or os.path.join(options.build, "bench-convergence.jsonl")
    unknown = set(options.only) - set(JOBS)
    if unknown:
        p.error(f"there is no model {', '.join(sorted(unknown))}; models: {', '.join(JOBS)}")
    return options


def main():
    options = parse(sys.argv[1:])
    rows = report.load(options.file) if os.path.exists(options.file) else []
    new = [] if options.report else [run.head()]
    for name in [] if options.report else options.only:
        for way in WAYS:
            new.append(train(options.build, name, way, options.steps))
            print(f"{name:8} {way[0]:10} {new[-1]['seconds']:6.1f} s", file=sys.stderr, flush=True)
    with open(options.file, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in new)
    rows = new[:1] + rows + new[1:]
    if not jobs_of(rows):
        sys.exit("convergence: nothing was measured yet")
    if not options.no_document:
        document(rows)
    print(table(rows))
    return 0 if all(map(same_bits, jobs_of(rows).values())) else 1


if __name__ == "__main__":
    sys.exit(main())
