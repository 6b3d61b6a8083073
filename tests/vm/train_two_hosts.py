#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training job over two machines with real verbs: servers on b, workers on a. The losses are, bit for bit, those of
the same job over shared memory inside a, whose processor is the same; every tensor went by one-sided writes from the
memory it was computed in; and the device never had to say that its receiver was not ready. Then the same again while lanes are killed at random
moments, and while a link falls back to tcp and returns: the same bits. Last, small models of each kind (fully
connected, convolutional, recurrent), whose kernels are oneDNN's on the processor of the machine: shm and verbs again
agree bit by bit.

Usage: train_two_hosts.py [KILLS] (TERN = the command): that many lanes are killed (10). The status is 77 where no machines can be had.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
os.environ.setdefault("TERN", "tern")
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from common import RESUME_BOUND_MS, TERN, resume_line, resume_times, write_idx  # noqa: E402

STEPS, WORKERS, VARIABLES = 6, 2, 6
# The first weights have 64 KiB: more than one packet, and more than a message has.
OPTIONS = ["--hidden", "256,16", "--steps", STEPS, "--batch", 16, "--sync", "--servers", 2, "--workers", WORKERS]
MODELS, MODEL_STEPS = ("mlp", "convnet_small", "gru_small"), 3
PARTS = ["worker0", "worker1", "server0", "server1"]
RNR = ["rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err"]


def check(what, got, expected):
    if got != expected:
        sys.exit(f"train_two_hosts: {what}: {got}, not {expected}")


def make_dataset(folder):
    """Four classes of patterns of 8x8."""
    for name, count in (("train", 256), ("t10k", 16)):
        labels = bytes(i * 7 % 4 for i in range(count))
        images = b"".join(bytes((label * 61 + p * p + i) % 251 for p in range(64)) for i, label in enumerate(labels))
        write_idx(f"{folder}/{name}-images-idx3-ubyte.gz", (count, 8, 8), images)
        write_idx(f"{folder}/{name}-labels-idx1-ubyte.gz", (count,), labels)


def losses(folder, name):
    with open(f"{folder}/{name}", encoding="ascii") as file:
        return [float.fromhex(line.split()[1]) for line in file]


def device(folder, host, when):
    with open(f"{folder}/device-{host}-{when}", encoding="ascii") as file:
        return {name: int(value) for name, value in (line.split() for line in file)}


def mean_losses(folder, job):
    """In the order in which a launcher adds them."""
    return [sum(pair) / WORKERS for pair in zip(losses(folder, f"{job}worker0"), losses(folder, f"{job}worker1"))]


def judge_part(name, part, steps, small):
    """small: each tensor fits one message, and so goes as one write with immediate data."""
    counters = part["counters"]
    print(f"{name}: {part['tensors_sent']} tensors, {part['bytes']} bytes, {counters.get('verbs.writes', 0)} writes, "
          f"{counters.get('verbs.write_imms', 0)} with immediate")
    check(f"{name}: transport", part["transport"], "verbs")
    check(f"{name}: steps", part["steps"], steps)
    check(f"{name}: tensors by one write each", part["writes"], part["tensors_sent"])
    for counter in ("copies", "copy_bytes", "staging_copies"):
        check(f"{name}: {counter}", part[counter], 0)
    # at the device too: each tensor ends with its notification, and nothing was copied into a bounce buffer
    if small:
        check(f"{name}: writes with immediate", counters["verbs.write_imms"], counters["tensor.sent"])
    check(f"{name}: bytes copied for the device", counters.get("verbs.copy_bytes", 0), 0)
    if counters["verbs.tx_bytes"] < counters["tensor.sent_bytes"]:
        sys.exit(f"train_two_hosts: {name}: the device moved less than the tensors have")


def judge(folder):
    parts = {}
    for name in PARTS:
        with open(f"{folder}/{name}.json", encoding="utf-8") as file:
            parts[name] = json.load(file)
    mean = mean_losses(folder, "")
    check("losses", [loss.hex() for loss in mean], [loss.hex() for loss in losses(folder, "shm")])
    check("number of losses", len(mean), STEPS)
    for name, part in parts.items():
        judge_part(name, part, STEPS, True)
    for role in ("worker", "server"):
        sent = sum(part["tensors_sent"] for name, part in parts.items() if name.startswith(role))
        check(f"tensors of all {role}s", sent, STEPS * VARIABLES * WORKERS)
    for host in ("a", "b"):
        before, after = device(folder, host, "before"), device(folder, host, "after")
        for counter in RNR:
            check(f"{host}: {counter}", after[counter] - before[counter], 0)
        if after["sent_pkts"] - before["sent_pkts"] < STEPS * VARIABLES * WORKERS:
            sys.exit(f"train_two_hosts: {host} sent hardly anything over its device")
    print(f"{STEPS} steps, the same bits; {' '.join(RNR)} 0")


def steps_under(kills):
    """A step has two to four kills; one job has STEPS at least."""
    return max(STEPS, kills // 2)


def judge_killed(folder, kills):
    killed, times = 0, []
    for name in PARTS:
        with open(f"{folder}/killed-{name}.err", encoding="utf-8") as file:
            err = file.read()
        killed += err.count("rebuilding the lanes: lane")
        times += resume_times(err)
    times.sort()
    mean = mean_losses(folder, "killed-")
    check("losses with lanes killed", [loss.hex() for loss in mean], [loss.hex() for loss in losses(folder, "killed-shm")])
    if killed < kills:
        sys.exit(f"train_two_hosts: {killed} lanes were killed, not {kills}")
    print(f"{killed} lanes killed, the same bits")
    print(resume_line("verbs", times))
    if times[-1] > RESUME_BOUND_MS:
        sys.exit("train_two_hosts: a link resumed later than its bound allows")


def judge_moved(folder):
    moves = {"link.fallbacks": 0, "link.returns": 0}
    for name in PARTS[:WORKERS]:
        with open(f"{folder}/moved-{name}.json", encoding="utf-8") as file:
            counters = json.load(file)["counters"]
        for counter in moves:
            moves[counter] += counters.get(counter, 0)
        print(f"{name}: {counters.get('tcp.tx_bytes', 0)} bytes over tcp, {counters['verbs.tx_bytes']} over verbs")
    mean = mean_losses(folder, "moved-")
    check("losses with a fall-back", [loss.hex() for loss in mean], [loss.hex() for loss in losses(folder, "killed-shm")])
    print(f"{moves['link.fallbacks']} links fell back to tcp, {moves['link.returns']} returned to verbs, the same bits")
    if not all(moves.values()):
        sys.exit("train_two_hosts: no link fell back and returned")


def judge_models(folder):
    """What a model moves, verbs moved: bytes of its parameters to and from each worker in each step, at the device too."""
    before = {host: device(folder, host, "after") for host in ("a", "b")}
    with open(f"{folder}/flags-a", encoding="ascii") as file:
        flags = file.read().split()
    print("instruction sets of the machine:", *(f for f in ("sse4_2", "avx2", "fma", "avx512f", "amx_tile") if f in flags))
    for model in MODELS:
        with open(f"{folder}/{model}-shm.json", encoding="utf-8") as file:
            shm = json.load(file)
        check(f"{model}: transport of the reference", shm["transport"], "shm")
        mean = mean_losses(folder, f"{model}-")
        check(f"{model}: losses", [loss.hex() for loss in mean], [loss.hex() for loss in losses(folder, f"{model}-shm")])
        check(f"{model}: number of losses", len(mean), MODEL_STEPS)
        if len(set(mean)) == 1:
            sys.exit(f"train_two_hosts: {model} does not learn: {mean}")
        sent = 0
        for name in PARTS:
            with open(f"{folder}/{model}-{name}.json", encoding="utf-8") as file:
                part = json.load(file)
            judge_part(f"{model}: {name}", part, MODEL_STEPS, False)
            sent += part["bytes"]
        # a model's variables are worth their bytes in gradients, and those in variables, for each worker and step
        check(f"{model}: bytes", sent, MODEL_STEPS * 2 * WORKERS * 4 * shm["parameters"])
        check(f"{model}: bytes over shm", shm["bytes"], sent)
        for host in ("a", "b"):
            after = device(folder, host, model)
            for counter in RNR:
                check(f"{model}: {host}: {counter}", after[counter] - before[host][counter], 0)
            # each side sends half of it, and a packet has 4 KiB at most
            if (after["sent_pkts"] - before[host]["sent_pkts"]) * 4096 < sent / 2:
                sys.exit(f"train_two_hosts: {model}: {host}'s device sent less than the tensors have")
            before[host] = after
        print(f"{model}: {MODEL_STEPS} steps, {sent} bytes over verbs, losses {' '.join(loss.hex() for loss in mean)}: as over shm")


def main():
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
        make_dataset(folder)
        status = subprocess.run([f"{HERE}/run", "--hosts", "2", "--timeout", str(250 + 3 * steps_under(kills)), "--shared", folder, "--",
                                 f"{HERE}/train_guest.sh", os.path.abspath(TERN), "channel.lane.break:p=0.03",
                                 str(steps_under(kills)), " ".join(MODELS), str(MODEL_STEPS), *map(str, OPTIONS)], check=False).returncode
        if status == 0:
            judge(folder)
            judge_killed(folder, kills)
            judge_moved(folder)
            judge_models(folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
