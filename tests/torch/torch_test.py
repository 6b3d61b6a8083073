#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training against PyTorch: the same initial weights, data and order, 50 steps, losses within 1e-3 relative.

The models are written down once more in PyTorch, cell by cell, from the names and shapes that the oracle
writes down. Skips (77) where PyTorch is not installed.
"""
import math
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

ORACLE = os.environ["ORACLE"]
STEPS = 50
torch.manual_seed(1)
torch.set_num_threads(1)


# ---- models: variables by name, one batch of each port -> loss ----

def dense(v, name, x):
    return x @ v[f"{name}/w"] + v[f"{name}/b"]


def mlp(v, x, labels):
    for i in (1, 2):
        x = F.relu(dense(v, f"fc{i}", x))
    return F.cross_entropy(dense(v, "fc3", x), labels.long())


def conv(v, name, x):
    return F.conv2d(x, v[f"{name}/w"], v.get(f"{name}/b"), padding=1)


def convnet(v, x, labels):
    x = F.max_pool2d(F.relu(conv(v, "conv1", x)), 2)
    x = F.max_pool2d(F.relu(conv(v, "conv2", x)), 2)
    x = F.relu(dense(v, "fc1", x.flatten(1)))
    return F.cross_entropy(dense(v, "fc2", x), labels.long())


def convnet_bn(v, x, labels):
    for name in ("conv1", "conv2"):
        x = conv(v, name, x)
        with torch.no_grad():
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            v[f"{name}/mean"] += 0.1 * (mean - v[f"{name}/mean"])
            v[f"{name}/variance"] += 0.1 * (var - v[f"{name}/variance"])
        x = F.batch_norm(x, None, None, v[f"{name}/gamma"], v[f"{name}/beta"], training=True, eps=1e-5)
        x = F.max_pool2d(F.relu(x), 2)
    return F.cross_entropy(dense(v, "fc", x.flatten(1)), labels.long())


def module_bn(v):
    """convnet_bn as PyTorch's own layers, with these variables."""
    layers = []
    for name in ("conv1", "conv2"):
        out, into = v[f"{name}/w"].shape[:2]
        conv2d, bn = torch.nn.Conv2d(into, out, 3, padding=1, bias=False), torch.nn.BatchNorm2d(out, eps=1e-5)
        conv2d.weight.data = v[f"{name}/w"]
        bn.weight.data, bn.bias.data = v[f"{name}/gamma"], v[f"{name}/beta"]
        bn.running_mean, bn.running_var = v[f"{name}/mean"].clone(), v[f"{name}/variance"].clone()
        layers += [conv2d, bn, torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    fc = torch.nn.Linear(*v["fc/w"].shape)
    fc.weight.data, fc.bias.data = v["fc/w"].T.contiguous(), v["fc/b"]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), fc)


def lstm_states(v, name, x):
    """x (T, B, I); gates in ONNX's order: input, output, forget, cell."""
    hidden = v[f"{name}/r"].shape[1]
    h = c = torch.zeros(x.shape[1], hidden)
    states = []
    for step in x:
        i, o, f, g = (step @ v[f"{name}/w"].T + h @ v[f"{name}/r"].T + v[f"{name}/b"]).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states)


def gru_states(v, name, x, h=None):
    """Gates in ONNX's order: update, reset, hidden."""
    hidden = v[f"{name}/r"].shape[1]
    h = torch.zeros(x.shape[1], hidden) if h is None else h
    states = []
    for step in x:
        wz, wr, wh = (step @ v[f"{name}/w"].T + v[f"{name}/b"]).chunk(3, 1)
        rz, rr, rh = (h @ v[f"{name}/r"].T).chunk(3, 1)
        z = torch.sigmoid(wz + rz)
        n = torch.tanh(wh + torch.sigmoid(wr + rr) * rh)
        h = (1 - z) * n + z * h
        states.append(h)
    return torch.stack(states)


def lstm(v, x, labels):
    return F.cross_entropy(dense(v, "fc", lstm_states(v, "rnn", x.transpose(0, 1))[-1]), labels.long())


def gru(v, x, labels):
    return F.cross_entropy(dense(v, "fc", gru_states(v, "rnn", x.transpose(0, 1))[-1]), labels.long())


def sequence_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long(), ignore_index=-1)


def charlm(v, tokens, targets):
    x = v["embedding/table"][tokens.T.long()]
    return sequence_loss(dense(v, "fc", lstm_states(v, "rnn", x)), targets.T)


def seq2seq(v, source, tokens, targets):
    memory = gru_states(v, "encoder", v["encoder/embedding/table"][source.T.long()])
    x = gru_states(v, "decoder", v["decoder/embedding/table"][tokens.T.long()], memory[-1]).transpose(0, 1)
    memory = memory.transpose(0, 1)
    scores = (x @ memory.transpose(1, 2)).masked_fill((source == 0)[:, None, :], -1e9)
    x = torch.cat([scores.softmax(2) @ memory, x], 2)
    return sequence_loss(dense(v, "fc", torch.tanh(dense(v, "attention", x))), targets)


def norm(v, name, x):
    return F.layer_norm(x, x.shape[-1:], v[f"{name}/gamma"], v[f"{name}/beta"])


def attention(v, name, x):
    batch, length, size = x.shape
    y = norm(v, f"{name}/norm", x)
    q, k, w = (dense(v, f"{name}/{p}", y).reshape(batch, length, 4, -1).transpose(1, 2) for p in "qkv")
    scores = q @ k.transpose(2, 3) / math.sqrt(size / 4) + torch.full((length, length), -1e9).triu(1)
    y = (scores.softmax(3) @ w).transpose(1, 2).reshape(batch, length, size)
    return x + dense(v, f"{name}/o", y)


def transformer(v, tokens, targets):
    x = v["embedding/table"][tokens.long()] + v["position/table"]
    for i in range(2):
        x = attention(v, f"block{i}/attention", x)
        y = F.gelu(dense(v, f"block{i}/mlp/up", norm(v, f"block{i}/mlp/norm", x)))
        x = x + dense(v, f"block{i}/mlp/down", y)
    return sequence_loss(dense(v, "fc", norm(v, "norm", x)), targets)


# ---- data ----

def images(shape, rows):
    """A picture per class and noise, so that there is something to learn."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 10, rows).astype(np.int32)
    centre = rng.uniform(0, 1, (10, *shape)).astype(np.float32)
    return {"images": centre[labels] * 0.5 + rng.uniform(0, 0.5, (rows, *shape)).astype(np.float32), "labels": labels}


def tokens(length, rows):
    rng = np.random.default_rng(8)
    text = (np.cumsum(rng.integers(0, 3, (rows, length + 1)), axis=1) + 97).astype(np.int32)
    targets = text[:, 1:].copy()
    targets[:, :2] = -1
    return {"tokens": text[:, :-1].copy(), "targets": targets}


def sentences(length, rows):
    rng = np.random.default_rng(9)
    source = rng.integers(1, 50, (rows, length)).astype(np.int32)
    for row, pad in zip(source, rng.integers(0, length // 2, rows)):
        row[:pad] = 0
    target = (source[:, ::-1] + 3).astype(np.int32)
    shifted = np.concatenate([np.full((rows, 1), 1, np.int32), target[:, :-1]], axis=1)
    return {"source": source, "tokens": shifted, "targets": np.where(target == 3, -1, target).astype(np.int32)}


# ---- both sides ----

def train_here(model, data, batch, folder, **options):
    for port, rows in data.items():
        np.ascontiguousarray(rows).tofile(os.path.join(folder, f"{port}.bin"))
    options = dict(options, model=model, steps=STEPS, batch=batch)
    done = subprocess.run([ORACLE, folder, *(f"{k}={v}" for k, v in options.items())], capture_output=True, text=True,
                          timeout=600, check=False)
    if done.returncode:
        raise AssertionError(f"{model}: {done.stderr}")
    losses = np.fromfile(os.path.join(folder, "losses.bin"), np.float32)
    return losses.reshape(-1, STEPS).astype(np.float64).mean(axis=0)


def read_variables(folder, name):
    flat = np.fromfile(os.path.join(folder, name), np.float32)
    variables, at = {}, 0
    with open(os.path.join(folder, "variables.txt"), encoding="utf-8") as lines:
        for line in lines:
            key, *dims = line.split()
            dims = [int(d) for d in dims]
            size = int(np.prod(dims)) if dims else 1
            variables[key] = torch.from_numpy(flat[at:at + size].reshape(dims).copy())
            at += size
    assert at == flat.size
    return variables


def optimizer_of(trained, kind, lr, momentum=0.0, weight_decay=0.0, epsilon=1e-8):
    if kind in ("sgd", "momentum"):
        return torch.optim.SGD(trained, lr, momentum, weight_decay=weight_decay)
    if kind == "adagrad":
        return torch.optim.Adagrad(trained, lr, weight_decay=weight_decay)
    if kind == "adam":
        return torch.optim.Adam(trained, lr, weight_decay=weight_decay)
    return torch.optim.RMSprop(trained, lr, alpha=0.9, eps=epsilon, momentum=momentum, weight_decay=weight_decay)


def train_torch(model, data, batch, variables, optimizer, lr, clip_norm=0, clip_value=0, **more):
    statistics = ("/mean", "/variance")
    trained = [v.requires_grad_(not k.endswith(statistics)) for k, v in variables.items()]
    trained = [v for v in trained if v.requires_grad]
    step_with = optimizer_of(trained, optimizer, lr, **more)
    losses = []
    for step in range(STEPS):
        rows = slice(step * batch, (step + 1) * batch)
        step_with.zero_grad()
        loss = model(variables, *(torch.from_numpy(np.ascontiguousarray(d[rows])) for d in data.values()))
        loss.backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(trained, clip_norm)
        if clip_value:
            torch.nn.utils.clip_grad_value_(trained, clip_value)
        step_with.step()
        losses.append(loss.item())
    return np.array(losses)


class Torch(unittest.TestCase):
    def compare(self, model, twin, data, batch, tolerance=1e-3, sizes=None, **options):
        with tempfile.TemporaryDirectory() as folder:
            here = train_here(model, data, batch, folder, **(sizes or {}), **options)
            variables = read_variables(folder, "initial.bin")
            final = read_variables(folder, "final.bin")
        there = train_torch(twin, data, batch, variables, **options)
        worst = np.abs(here - there) / np.abs(there)
        self.assertTrue((worst < tolerance).all(), f"{model}: off by {worst.max():.2g} at step {worst.argmax()}\n"
                                                   f"here  {here}\nthere {there}")
        self.assertLess(here[-5:].mean(), here[:5].mean(), f"{model} learns nothing")
        for key, v in variables.items():
            spread = (v.detach() - final[key]).abs().max().item()
            self.assertLess(spread, 0.02 * (1 + v.detach().abs().max().item()), f"{model}: {key} ends elsewhere")
        return here

    def agree(self, model, data, batch, alone, sizes=None, **options):
        """The same global batch on 1, 2 and 4 workers."""
        for servers, workers in ((1, 1), (2, 2), (2, 4)):
            with tempfile.TemporaryDirectory() as folder:
                here = train_here(model, data, batch, folder, servers=servers, workers=workers, **(sizes or {}), **options)
            worst = (np.abs(here - alone) / np.abs(alone)).max()
            self.assertLess(worst, 1e-3, f"{model}: {workers} workers")

    def model(self, model, twin, data, batch, workers=True, sizes=None, **options):
        alone = self.compare(model, twin, data, batch, sizes=sizes, **options)
        if workers:
            self.agree(model, data, batch, alone, sizes=sizes, **options)

    def test_mlp(self):
        self.model("mlp", mlp, images((784,), STEPS * 16), 16, optimizer="momentum", lr=0.02, momentum=0.9)

    def test_convnet(self):
        self.model("convnet_small", convnet, images((1, 28, 28), STEPS * 16), 16, optimizer="momentum", lr=0.02,
                   momentum=0.9)

    def test_batch_norm(self):
        self.model("convnet_bn", convnet_bn, images((1, 28, 28), STEPS * 16), 16, workers=False, optimizer="sgd", lr=0.05)

    def test_batch_norm_in_use(self):
        """A trained model normalises by the running statistics, as eval() of PyTorch's own layers does."""
        data = images((1, 28, 28), STEPS * 16)
        for servers, workers in ((0, 1), (1, 2)):
            with tempfile.TemporaryDirectory() as folder:
                train_here("convnet_bn", data, 16, folder, optimizer="sgd", lr=0.05, servers=servers, workers=workers, evaluate=40)
                probs = np.fromfile(os.path.join(folder, "probs.bin"), np.float32).reshape(40, 10)
                if not servers:
                    final = read_variables(folder, "final.bin")
            if servers:  # sums over workers are in another order
                self.assertLess(np.abs(probs - alone).max(), 0.1)
                continue
            alone, twin = probs, module_bn(final)
            with torch.no_grad():
                x = torch.from_numpy(data["images"][:40])
                there = twin.eval()(x).softmax(1).numpy()
                by_batch = twin.train()(x).softmax(1).numpy()
            np.testing.assert_allclose(probs, there, rtol=1e-4, atol=1e-6)
            self.assertGreater(np.abs(by_batch - there).max(), 1e-3, "statistics of the batch would do as well")
            self.assertGreater((probs.argmax(1) == data["labels"][:40]).mean(), 0.5)

    def test_lstm(self):
        self.model("lstm_small", lstm, images((28, 28), STEPS * 16), 16, optimizer="adam", lr=0.005)

    def test_gru(self):
        self.model("gru_small", gru, images((28, 28), STEPS * 16), 16, optimizer="adam", lr=0.005)

    def test_charlm(self):
        # rows of one length each, so that means over workers are the mean over all
        self.model("charlm", charlm, tokens(12, STEPS * 8), 8, sizes={"length": 12}, optimizer="adam", lr=0.002,
                   clip_norm=1.0)

    def test_seq2seq(self):
        self.model("seq2seq", seq2seq, sentences(8, STEPS * 8), 8, workers=False,
                   sizes={"length": 8, "inputs": 64, "classes": 64}, optimizer="adam", lr=0.002)

    def test_transformer(self):
        self.model("transformer", transformer, tokens(12, STEPS * 8), 8, sizes={"length": 12}, optimizer="adam", lr=0.001)

    def test_modes(self):
        """How tensors travel does not change a bit."""
        for model, shape in (("convnet_small", (1, 28, 28)), ("gru_small", (28, 28))):
            losses = set()
            for comm in range(3):
                with tempfile.TemporaryDirectory() as folder:
                    losses.add(train_here(model, images(shape, STEPS * 16), 16, folder, servers=2, workers=2, comm=comm,
                                          optimizer="adam", lr=0.005).tobytes())
            self.assertEqual(len(losses), 1, model)

    def test_optimizers(self):
        data = images((784,), STEPS * 16)
        for options in ({"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.01},
                        {"optimizer": "momentum", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.01},
                        {"optimizer": "adagrad", "lr": 0.01, "weight_decay": 0.01},
                        {"optimizer": "adam", "lr": 0.001, "weight_decay": 0.01},
                        {"optimizer": "rmsprop", "lr": 0.0005, "weight_decay": 0.01},
                        {"optimizer": "rmsprop", "lr": 0.0002, "momentum": 0.9, "epsilon": 0.01},
                        {"optimizer": "momentum", "lr": 0.02, "momentum": 0.9, "clip_norm": 0.5},
                        {"optimizer": "adam", "lr": 0.001, "clip_value": 0.001}):
            with self.subTest(**options):
                self.compare("mlp", mlp, data, 16, **options)


if __name__ == "__main__":
    unittest.main(verbosity=2)
