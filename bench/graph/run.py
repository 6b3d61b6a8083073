#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The graph's communication against gRPC: one tensor between two processes, and training of whole models.

Usage: bench/graph/run.py BUILD [options]     (./dev bench graph)

  moving     bench-graph-micro: milliseconds per tensor, against one memcpy of its bytes
  training   `tern train --sync`: median step of each model with 1, 2 and 4 workers in each way of communication

Exposed communication time of a step = its wall time minus that of the same step whose tensors have no bytes
(`--comm none`: every process runs and waits for the others as before, but nothing is moved). Processor time of
communication is the same difference of the processor time of all processes. Runs take turns, so that a noisy minute
meets all ways. Every process sleeps when it has nothing to do (--spin: polls).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

MODELS = ("fcn5", "alexnet", "vgg16", "inception_v3", "lstm", "gru", "mlp")
# Rows per worker and step: what a step of two cores bears.
BATCH = {"alexnet": 4, "vgg16": 1, "inception_v3": 1, "lstm": 4, "gru": 4}
REPEATED = ("fcn5", "lstm", "mlp")  # medians of three runs; the others run once
# name, arguments, environment
WAYS = (
    ("none", ("--comm", "none"), {}),
    ("zerocopy", ("--comm", "zerocopy"), {}),
    ("copy", ("--comm", "copy"), {}),
    ("rpc", ("--comm", "rpc", "--transport", "tcp"), {}),
    ("grpc plain", ("--comm", "grpc"), {"TERN_GRAPH_GRPC_WAY": "plain"}),
    ("grpc tuned", ("--comm", "grpc"), {"TERN_GRAPH_GRPC_WAY": "tuned"}),
)


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def needed_bytes(parameters, workers, way):
    """What a job's processes hold of its model, roughly: weights, momentum and the sum at the servers; two slots per edge, a
    gradient and its copies in messages for each worker."""
    model = 4 * parameters
    per_worker = 6 if way in ("zerocopy", "none") else 10
    return 3 * model + workers * per_worker * model


def tern(build, args, env):
    done = subprocess.run([f"{build}/cli/tern", "train", "--quiet", "--json", "--no-eval", "--sync", *map(str, args)],
                          env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
    return json.loads(done.stdout), None


class Bench:
    def __init__(self, options):
        self.options = options
        self.rows = []

    def say(self, text=""):
        if not self.options.json:
            print(text, flush=True)

    # ---- moving ----

    def moving(self):
        command = [f"{self.options.build}/bench/graph/bench-graph-micro", "--json", "--sizes", self.options.sizes]
        if self.options.spin:
            command.append("--spin")
        rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        plain = {r["MiB"]: r["ms"] for r in rows if r["way"] == "grpc plain"}
        tuned = {r["MiB"]: r["ms"] for r in rows if r["way"] == "grpc tuned"}
        self.say(f"one tensor, {rows[0]['waits']}, medians\n")
        self.say(f"{'way':13} {'MiB':>5} {'ms':>9} {'GB/s':>6} {'memcpy/it':>9} {'plain/it':>8} {'tuned/it':>8} {'CPU ms':>8}")
        for r in rows:
            r["of_limit"] = r["memcpy_ms"] / r["ms"]
            r["grpc_plain_ratio"] = plain[r["MiB"]] / r["ms"] if r["MiB"] in plain else None
            r["grpc_tuned_ratio"] = tuned[r["MiB"]] / r["ms"] if r["MiB"] in tuned else None
            ratios = " ".join(f"{v:8.1f}" if v else f"{'-':>8}" for v in (r["grpc_plain_ratio"], r["grpc_tuned_ratio"]))
            self.say(f"{r['way']:13} {r['MiB']:5} {r['ms']:9.3f} {r['MiB'] * 1.048576 / r['ms']:6.2f} {r['of_limit']:9.2f} "
                     f"{ratios} {r['sender_cpu_ms'] + r['receiver_cpu_ms']:8.2f}")
        self.say()
        return rows

    # ---- training ----

    def job(self, model, workers, way):
        _, args, env = way
        args = [*self.data(model), "--model", model, "--workers", workers, "--servers", self.options.servers, "--steps",
                self.options.steps, *args, *self.options.more]
        if self.options.spin:
            args.append("--spin")
        return tern(self.options.build, args, env)

    @staticmethod
    def data(model):
        return ("--data", "synthetic", "--batch", BATCH[model]) if model in BATCH else ()

    def parameters(self, model):
        """None and a reason if this build cannot train the model."""
        result, error = tern(self.options.build, [*self.data(model), "--model", model, "--servers", 0, "--workers", 1, "--steps", 1,
                                                  *self.options.more], {})
        return (result["parameters"], None) if result else (None, error)

    def group(self, model, workers, parameters):
        """All ways of one model and number of workers, in turns."""
        runs, left_out = {}, {}
        for _ in range(self.options.rounds if model in REPEATED else 1):
            for way in self.options.ways:
                need, have = needed_bytes(parameters, workers, way[0]), available_bytes()
                if need > 0.85 * have:
                    left_out[way[0]] = f"needs about {need >> 20} MiB, {have >> 20} MiB are free"
                    continue
                result, error = self.job(model, workers, way)
                if result:
                    runs.setdefault(way[0], []).append(result)
                else:
                    left_out[way[0]] = error
        return runs, left_out

    def report(self, model, workers, runs, left_out):
        def mid(name, value):
            return statistics.median(value(r) for r in runs[name]) if name in runs else None

        def step(name):
            return mid(name, lambda r: r["step_seconds"])

        def cpu(name):
            return mid(name, lambda r: r["cpu_seconds"] / r["steps"])

        plain = step("grpc plain") - step("none") if "grpc plain" in runs and "none" in runs else None
        for name, _, _ in self.options.ways:
            row = {"model": model, "workers": workers, "way": name}
            self.rows.append(row)
            if name not in runs:
                row["left_out"] = left_out.get(name, "?")
                self.say(f"{model:13} {workers:3} {name:11} left out: {row['left_out']}")
                continue
            row.update(step_seconds=step(name), steps_per_s=1 / step(name), cpu_seconds=cpu(name), runs=len(runs[name]),
                       rows_per_s=mid(name, lambda r: r["options"]["batch"]) * workers / step(name),
                       transport=runs[name][0]["transport"], waits="spin" if self.options.spin else "block",
                       loss=runs[name][0]["loss"])
            text = f"{model:13} {workers:3} {name:11} {1e3 * row['step_seconds']:9.1f} {row['rows_per_s']:9.0f}"
            if "none" in runs and name != "none":
                exposed = row["exposed_seconds"] = step(name) - step("none")
                row["comm_cpu_seconds"] = cpu(name) - cpu("none")
                text += f" {1e3 * exposed:9.1f} {1e3 * row['comm_cpu_seconds']:9.1f}"
                if plain is not None and exposed > 0:
                    row["exposed_of_grpc"] = plain / exposed
                    text += f" {plain / exposed:9.1f}"
            self.say(text)

    def training(self):
        self.say(f"training, --sync, {self.options.servers} servers, {self.options.steps} steps a run\n")
        self.say(f"{'model':13} {'W':>3} {'way':11} {'step ms':>9} {'rows/s':>9} {'exposed':>9} {'comm CPU':>9} {'plain/it':>9}")
        for model in self.options.models:
            parameters, error = self.parameters(model)
            if parameters is None:
                self.rows.append({"model": model, "left_out": error})
                self.say(f"{model:13} left out: {error}")
                continue
            for workers in self.options.workers:
                self.report(model, workers, *self.group(model, workers, parameters))
        self.say()
        return self.rows


def numbers(text):
    return [int(word) for word in text.split(",")]


def parse(argv):
    p = argparse.ArgumentParser(prog="./dev bench graph", description="transfers of graphs, against gRPC")
    p.add_argument("build", help="folder of a release build")
    p.add_argument("--json", action="store_true", help="one JSON object")
    p.add_argument("--only", choices=("moving", "training"), help="half of it")
    p.add_argument("--sizes", default="1,4,16,64,244", help="MiB of a tensor; tern's calls carry less than 256")
    p.add_argument("--models", default=",".join(MODELS), help="of training")
    p.add_argument("--workers", default="1,2,4", type=numbers)
    p.add_argument("--servers", default=2, type=int)
    p.add_argument("--steps", default=9, type=int, help="of each run; the first is not counted")
    p.add_argument("--rounds", default=3, type=int, help="runs of fcn5, lstm and mlp, whose medians are taken; others run once")
    p.add_argument("--ways", help="some of: " + ", ".join(way[0] for way in WAYS))
    p.add_argument("--spin", action="store_true", help="poll instead of sleeping")
    p.add_argument("more", nargs="*", help="further arguments of `tern train`, behind --")
    options = p.parse_args(argv)
    options.models = options.models.split(",")
    options.ways = [w for w in WAYS if not options.ways or w[0] in options.ways.split(",")]
    return options


def main():
    options = parse(sys.argv[1:])
    bench, result = Bench(options), {"cpus": os.cpu_count()}
    if options.only != "training":
        result["moving"] = bench.moving()
    if options.only != "moving":
        result["training"] = bench.training()
    if options.json:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
