#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The graph's communication against gRPC: one tensor between two processes, and training of whole models.

Usage: bench/graph/run.py BUILD [options]     (./dev bench graph)

  moving     bench-graph-micro: milliseconds per tensor, against its two limits (see micro.c)
  training   `tern train --sync`: median step of each model with 1, 2 and 4 workers in each way of communication

Exposed communication time of a step = its wall time minus that of the same step whose tensors have no bytes
(`--comm none`: every process runs and waits for the others as before, but nothing is moved). Processor time of
communication is the same difference of the processor time of all processes. Runs take turns, so that a noisy minute
meets all ways. Every process sleeps when it has nothing to do (--spin: polls).

Each run is one line of JSON in a file as soon as it is over; --resume FILE goes on where that file ends, and --report FILE
only makes tables and plots of it (report.py), so the whole can be done in pieces. How many steps a run has follows from
how long one takes (--seconds): at least one behind the first, which is not counted.
"""
import argparse
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report  # noqa: E402

MODELS = ("fcn5", "alexnet", "vgg16", "inception_v3", "lstm", "gru")
# Rows per worker and step: what a step of two cores bears. The others have tern train's own, and its data.
BATCH = {"alexnet": 4, "vgg16": 1, "inception_v3": 1, "lstm": 4, "gru": 4}
REPEATED = ("fcn5", "lstm", "gru")  # medians of three runs; the others run once
# name, arguments, environment, copies of the model's bytes per worker, bytes per second that are guessed for steps
WAYS = (
    ("none", ("--comm", "none"), {}, 5, 1e12),
    ("zerocopy", ("--comm", "zerocopy"), {}, 6, 10e9),
    ("copy", ("--comm", "copy"), {}, 10, 5e9),
    ("rpc", ("--comm", "rpc", "--transport", "tcp"), {}, 9, 2e9),
    ("grpc plain", ("--comm", "grpc"), {"TERN_GRAPH_GRPC_WAY": "plain"}, 6, 0.8e9),
    ("grpc tuned", ("--comm", "grpc"), {"TERN_GRAPH_GRPC_WAY": "tuned"}, 6, 3e9),
)
STEPS_MAX = 8  # that are counted


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def needed_bytes(parameters, workers, way):
    """What a job's processes hold, as it was seen: weights, optimiser state, sums and slots at the servers; slots of the weights,
    gradients and their copies in messages for each worker."""
    return 4 * parameters * (6 + workers * way[3])


def head():
    cpu = "?"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":")[1].strip()
    return {"kind": "head", "cpus": os.cpu_count(), "cpu": cpu, "kernel": os.uname().release,
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "time": datetime.datetime.now().strftime("%Y-%m-%d %H:%M")}


def run_job(command, env, limit_s):
    """stdout, or None and why."""
    with subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            out, err = job.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGTERM)  # the launcher ends its processes
            job.communicate()
            return None, f"took more than {limit_s} s"
    if job.returncode:
        return None, err.strip().splitlines()[-1] if err.strip() else f"status {job.returncode}"
    return out, None


class Bench:
    def __init__(self, options):
        self.options = options
        self.rows = report.load(options.resume) if options.resume and os.path.exists(options.resume) else []
        self.path = options.resume or os.path.join(options.build, "bench-graph.jsonl")
        if not options.resume and os.path.exists(self.path):
            os.unlink(self.path)
        if not any(r["kind"] == "head" for r in self.rows):
            self.add(head())

    def say(self, text=""):
        if not self.options.json:
            print(text, flush=True)

    def add(self, row):
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    # ---- moving ----

    def moving(self):
        known = {(r["way"], r["MiB"]) for r in self.rows if r["kind"] == "moving"}
        for way in report.MOVING:
            sizes = [s for s in self.options.sizes if (way, s) not in known]
            if not sizes:
                continue
            command = [f"{self.options.build}/bench/graph/bench-graph-micro", "--json", "--only", way, "--sizes",
                       ",".join(map(str, sizes))]
            out, error = run_job(command + (["--spin"] if self.options.spin else []), {}, 600)
            if error:
                self.say(f"moving: {way} left out: {error}")
                continue
            for row in json.loads(out):
                self.add({"kind": "moving", **row})
                self.say(f"moving: {row['way']:13} {row['MiB']:4} MiB {row['ms']:9.3f} ms")

    # ---- training ----

    def known(self, model, workers, way, turn):
        for r in self.rows:
            if r["kind"] in ("run", "left_out") and (r["model"], r["workers"], r["way"], r["round"]) == (model, workers, way, turn):
                return r
        return None

    def steps(self, model, workers, way, parameters):
        """As many as fit the seconds, by the step without bytes and a guess at the bytes'."""
        if self.options.steps:
            return self.options.steps
        base = [r["step_seconds"] for r in self.rows if r["kind"] == "run" and r["way"] == "none" and r["model"] == model
                and r["workers"] == workers]
        if not base:
            return 3
        step = statistics.median(base) + 8 * parameters * workers / way[4]
        return 1 + max(1, min(STEPS_MAX, int(self.options.seconds / step)))

    def job(self, model, workers, way, steps):
        _, args, env = way[:3]
        data = ("--data", "synthetic", "--batch", str(BATCH[model])) if model in BATCH else ()
        command = [f"{self.options.build}/cli/tern", "train", "--quiet", "--json", "--no-eval", "--sync", *data, "--model", model,
                   "--workers", str(workers), "--servers", str(self.options.servers), "--steps", str(steps), *args,
                   *(["--spin"] if self.options.spin else []), *self.options.more]
        out, error = run_job(command, env, self.options.limit)
        return (json.loads(out), None) if out else (None, error)

    def parameters(self, model):
        """None if this build cannot say."""
        out, _ = run_job([f"{self.options.build}/cli/tern", "graph", "show", model, "--json"], {}, 60)
        return json.loads(out)["parameters"] if out else None

    def one(self, model, workers, way, turn, parameters):
        place = {"model": model, "workers": workers, "way": way[0], "round": turn}
        need, have = needed_bytes(parameters, workers, way), available_bytes()
        if need > 0.9 * have:
            self.add({"kind": "left_out", **place, "reason": f"needs about {need >> 20} MiB, {have >> 20} MiB are free"})
            self.say(f"{model:13} {workers:3} {way[0]:11} left out: {self.rows[-1]['reason']}")
            return
        steps = self.steps(model, workers, way, parameters)
        result, error = self.job(model, workers, way, steps)
        if error:
            self.add({"kind": "left_out", **place, "reason": error})
            self.say(f"{model:13} {workers:3} {way[0]:11} left out: {error}")
            return
        self.add({"kind": "run", **place, "parameters": parameters, "steps": steps, "step_seconds": result["step_seconds"],
                  "cpu_seconds": result["cpu_seconds"] / result["steps"], "rows": result["options"]["batch"] * workers,
                  "transport": result["transport"], "waits": "spin" if self.options.spin else "block", "loss": result["loss"],
                  "servers": self.options.servers})
        self.say(f"{model:13} {workers:3} {way[0]:11} {1e3 * result['step_seconds']:9.1f} ms")

    def training(self):
        for model in self.options.models:
            parameters = self.parameters(model)
            if not parameters:
                self.say(f"{model}: unknown here")
                continue
            for workers in self.options.workers:
                for turn in range(self.options.rounds if model in REPEATED else 1):
                    for way in self.options.ways:
                        if not self.known(model, workers, way[0], turn):
                            self.one(model, workers, way, turn, parameters)


def numbers(text):
    return [int(word) for word in text.split(",")]


def parse(argv):
    p = argparse.ArgumentParser(prog="./dev bench graph", description="transfers of graphs, against gRPC")
    p.add_argument("build", help="folder of a release build")
    p.add_argument("--json", action="store_true", help="one JSON object")
    p.add_argument("--only", choices=("moving", "training"), help="half of it")
    p.add_argument("--resume", metavar="FILE", help="go on with the runs that FILE lacks, and add them to it")
    p.add_argument("--report", metavar="FILE", help="run nothing: tables and plots of docs/PERFORMANCE.md, from FILE")
    p.add_argument("--sizes", default="1,4,16,64,256", type=numbers, help="MiB of a tensor")
    p.add_argument("--only-models", "--models", dest="models", default=",".join(MODELS), help="of training")
    p.add_argument("--workers", default="1,2,4", type=numbers)
    p.add_argument("--servers", default=2, type=int)
    p.add_argument("--steps", default=0, type=int, help="of each run, the first of which is not counted (as --seconds allow)")
    p.add_argument("--seconds", default=4.0, type=float, help="of counted steps of a run, about (4)")
    p.add_argument("--limit", default=180, type=int, help="seconds that a run may take (180)")
    p.add_argument("--rounds", default=3, type=int, help="runs of fcn5, lstm and gru, whose medians are taken; others run once")
    p.add_argument("--ways", help="some of: " + ", ".join(way[0] for way in WAYS))
    p.add_argument("--spin", action="store_true", help="poll instead of sleeping")
    p.add_argument("more", nargs="*", help="further arguments of `tern train`, behind --")
    options = p.parse_args(argv)
    options.models = options.models.split(",")
    options.ways = [w for w in WAYS if not options.ways or w[0] in options.ways.split(",")]
    return options


def main():
    options = parse(sys.argv[1:])
    if options.report:
        return report.document(report.load(options.report))
    bench = Bench(options)
    if options.only != "training":
        bench.moving()
    if options.only != "moving":
        bench.training()
    if options.json:
        print(json.dumps(bench.rows, indent=1))
    else:
        print("\n" + report.text(bench.rows) + f"\n\n{bench.path}: --resume goes on with it, --report documents it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
