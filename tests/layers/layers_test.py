#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers against PyTorch: results and the gradients of all inputs, on random data, within 1e-5 of the largest.

Each case is one op with its attributes and inputs, and what PyTorch says to it. Skips (77) where PyTorch is
not installed.
"""
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

LAYERS = os.environ["LAYERS"]
torch.set_num_threads(1)
FORWARD, REVERSE, BOTH = 0, 1, 2


def rand(*shape, seed=[1]):
    seed[0] += 1
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed[0])) * 2 - 1


def attr_line(name, v):
    if isinstance(v, float):
        return f"float {name} {v!r}"
    if isinstance(v, int):
        return f"int {name} {v}"
    return f"ints {name} {len(v)} " + " ".join(map(str, v))


class Layers(unittest.TestCase):
    """Cases are collected, computed by one process, then compared."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tern-test-layers-")
        self.cases = []

    def tearDown(self):
        if self.cases:
            dirs = [c[0] for c in self.cases]
            subprocess.run([LAYERS, *dirs], check=True, timeout=240)
            for case in self.cases:
                self.compare(*case)
        self.folder.cleanup()

    def case(self, op, inputs, expected, gradients=True, **attrs):
        """expected: a function of the inputs, or of those that require no gradient as well, to a list."""
        where = os.path.join(self.folder.name, str(len(self.cases)))
        os.mkdir(where)
        inputs = [x.to(torch.float32).to(torch.float64).requires_grad_(gradients) for x in inputs]
        outs = expected(*inputs)
        outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
        douts = [rand(*o.shape).to(torch.float32).to(torch.float64) for o in outs]
        lines = [f"op {op} {len(outs)}"] + [attr_line(k, v) for k, v in attrs.items()]
        for i, x in enumerate(inputs):
            lines.append(f"in {x.dim()} " + " ".join(map(str, x.shape)))
            x.detach().numpy().astype(np.float32).tofile(f"{where}/in{i}")
        grads = []
        if gradients:
            for i, d in enumerate(douts):
                lines.append(f"dout {i}")
                d.numpy().astype(np.float32).tofile(f"{where}/dout{i}")
            grads = torch.autograd.grad(sum((o * d).sum() for o, d in zip(outs, douts)), inputs)
        with open(f"{where}/case.txt", "w", encoding="ascii") as f:
            f.write("\n".join(lines) + "\n")
        self.cases.append((where, f"{op} {attrs}", [o.detach() for o in outs], grads))

    def compare(self, where, what, outs, grads):
        for name, tensors in (("out", outs), ("grad", grads)):
            for i, want in enumerate(tensors):
                want = want.numpy()
                got = np.fromfile(f"{where}/{name}{i}", dtype=np.float32).reshape(want.shape)
                off = float(np.abs(got - want).max() / (1 + np.abs(want).max()))
                self.assertLess(off, 1e-5, f"{what}: {name}{i}")

    # ---- convolutions ----

    def test_conv(self):
        shapes = [
            # N, C, M, group, in, kernel, stride, pad, dilation
            (2, 3, 4, 1, (9,), (3,), (2,), (1,), (1,)),
            (2, 4, 6, 2, (8, 7), (3, 2), (1, 2), (1, 0), (1, 1)),
            (1, 3, 16, 1, (12, 12), (5, 5), (1, 1), (2, 2), (1, 1)),
            (1, 8, 8, 8, (9, 9), (3, 3), (1, 1), (2, 2), (2, 2)),
            (2, 16, 32, 1, (7, 7), (1, 1), (1, 1), (0, 0), (1, 1)),
            (1, 2, 4, 2, (5, 6, 4), (2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2)),
        ]
        convs = [F.conv1d, F.conv2d, F.conv3d]
        for n, c, m, g, size, k, stride, pad, dil in shapes:
            self.case("Conv", [rand(n, c, *size), rand(m, c // g, *k), rand(m)],
                      lambda x, w, b: convs[len(size) - 1](x, w, b, stride, pad, dil, g),
                      strides=stride, pads=pad + pad, dilations=dil, group=g)

    def test_conv_transpose(self):
        shapes = [
            (2, 3, 4, 1, (5,), (3,), (2,), (1,), (1,), (1,)),
            (1, 4, 6, 2, (4, 5), (3, 3), (2, 1), (1, 0), (1, 2), (1, 0)),
            (1, 2, 3, 1, (3, 3, 3), (2, 3, 2), (1, 2, 2), (0, 1, 0), (1, 1, 1), (0, 1, 1)),
        ]
        convs = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]
        for n, c, m, g, size, k, stride, pad, dil, more in shapes:
            self.case("ConvTranspose", [rand(n, c, *size), rand(c, m // g, *k), rand(m)],
                      lambda x, w, b: convs[len(size) - 1](x, w, b, stride, pad, more, g, dil),
                      strides=stride, pads=pad + pad, dilations=dil, group=g, output_padding=more)

    # ---- pools ----

    def test_max_pool(self):
        for k, s, p, d, ceil in (((2, 2), (2, 2), (0, 0), (1, 1), False), ((3, 2), (2, 1), (1, 1), (1, 1), False),
                                 ((3, 3), (2, 2), (1, 1), (1, 1), True), ((2, 2), (1, 2), (1, 0), (2, 3), True)):
            self.case("MaxPool", [rand(2, 3, 9, 8)], lambda x: F.max_pool2d(x, k, s, p, d, ceil),
                      kernel_shape=k, strides=s, pads=p + p, dilations=d, ceil_mode=int(ceil))
        self.case("MaxPool", [rand(2, 3, 9)], lambda x: F.max_pool1d(x, 3, 2), kernel_shape=(3,), strides=(2,))
        self.case("MaxPool", [rand(1, 2, 5, 6, 4)], lambda x: F.max_pool3d(x, 2), kernel_shape=(2, 2, 2),
                  strides=(2, 2, 2))
        self.case("GlobalMaxPool", [rand(2, 3, 4, 5)], lambda x: x.amax((2, 3), keepdim=True))

    def test_average_pool(self):
        for k, s, p, ceil in (((2, 2), (2, 2), (0, 0), False), ((3, 2), (2, 1), (1, 1), False),
                              ((3, 3), (2, 2), (1, 1), True), ((2, 3), (3, 3), (1, 1), True)):
            for count in (False, True):
                self.case("AveragePool", [rand(2, 3, 9, 8)],
                          lambda x: F.avg_pool2d(x, k, s, p, ceil, count), kernel_shape=k, strides=s,
                          pads=p + p, ceil_mode=int(ceil), count_include_pad=int(count))
        self.case("GlobalAveragePool", [rand(2, 3, 4, 5)], lambda x: x.mean((2, 3), keepdim=True))

    # ---- norms ----

    def test_norms(self):
        x, v = rand(4, 3, 5, 6), [rand(3), rand(3)]
        self.case("BatchNormTrain", [x, *v], lambda x, s, b: F.batch_norm(x, None, None, s, b, True, eps=1e-3),
                  epsilon=1e-3)
        self.case("BatchNormTrain", [rand(9, 7), rand(7), rand(7)],
                  lambda x, s, b: F.batch_norm(x, None, None, s, b, True, eps=1e-3), epsilon=1e-3)
        self.case("BatchNorm", [x, *v, rand(3), rand(3).abs() + 0.1],
                  lambda x, s, b, m, q: F.batch_norm(x, m, q, s, b, False, eps=1e-3), gradients=False,
                  epsilon=1e-3)
        self.case("InstanceNorm", [x, *v], lambda x, s, b: F.instance_norm(x, weight=s, bias=b, eps=1e-3),
                  epsilon=1e-3)
        self.case("LayerNorm", [x, rand(6), rand(6)], lambda x, s, b: F.layer_norm(x, (6,), s, b, 1e-3),
                  epsilon=1e-3)
        self.case("LayerNorm", [x, rand(5, 6), rand(5, 6)], lambda x, s, b: F.layer_norm(x, (5, 6), s, b, 1e-3),
                  epsilon=1e-3, axis=2)
        self.case("LRN", [rand(2, 7, 4, 5)], lambda x: F.local_response_norm(x, 5, 0.2, 0.75, 1.5), size=5,
                  alpha=0.2, beta=0.75, bias=1.5)

    def test_matmul(self):
        for a, b in (((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((4,), (2, 4, 5)),
                     ((3, 4), (4,)), ((3, 4), (4, 2))):
            self.case("MatMul", [rand(*a), rand(*b)], torch.matmul)

    # ---- recurrent ----

    def recurrent(self, op, torch_op, order, **attrs):
        """order: PyTorch's gate number k is number order[k] of ONNX."""
        gates, inputs, h = len(order), 4, 6

        def gate_order(t):
            return torch.cat([t[g * h:(g + 1) * h] for g in order])

        for direction in (FORWARD, BOTH):
            dirs = 2 if direction == BOTH else 1

            def expected(x, w, r, b, *state):
                flat = []
                for d in range(dirs):
                    flat += [gate_order(w[d]), gate_order(r[d]), gate_order(b[d, :gates * h]),
                             gate_order(b[d, gates * h:])]
                state = list(state) if op == "LSTM" else state[0]
                y, *last = torch_op(x, state, flat, True, 1, 0.0, False, dirs == 2, False)
                return [y.reshape(5, 3, dirs, h).transpose(1, 2), *last]

            states = [rand(dirs, 3, h) for _ in range(2 if op == "LSTM" else 1)]
            self.case(op, [rand(5, 3, inputs), rand(dirs, gates * h, inputs), rand(dirs, gates * h, h),
                           rand(dirs, 2 * gates * h), *states], expected, direction=direction, **attrs)

    def test_lstm(self):
        self.recurrent("LSTM", torch.lstm, [0, 2, 3, 1])  # i o f c -> i f g o

    def test_gru(self):
        self.recurrent("GRU", torch.gru, [1, 0, 2], linear_before_reset=1)  # z r h -> r z n

    def test_gru_reset_first(self):
        """ONNX's other GRU, which PyTorch does not have: written down step by step."""
        def expected(x, w, r, b, h):
            (wz, wr, wn), (rz, rr, rn) = w[0].chunk(3), r[0].chunk(3)
            bz, br, bn, cz, cr, cn = b[0].chunk(6)
            h, ys = h[0], []
            for xt in x.flip(0):
                z = torch.sigmoid(xt @ wz.T + h @ rz.T + bz + cz)
                q = torch.sigmoid(xt @ wr.T + h @ rr.T + br + cr)
                n = torch.tanh(xt @ wn.T + (q * h) @ rn.T + bn + cn)
                h = (1 - z) * n + z * h
                ys.insert(0, h)
            return [torch.stack(ys).unsqueeze(1), h.unsqueeze(0)]

        self.case("GRU", [rand(4, 2, 3), rand(1, 15, 3), rand(1, 15, 5), rand(1, 30), rand(1, 2, 5)], expected,
                  direction=REVERSE)

    def test_lstm_with_peepholes(self):
        def expected(x, w, r, b, h, c, p):
            h, c, ys = h[0], c[0], []
            pi, po, pf = p[0].chunk(3)
            for xt in x:
                i, o, f, n = (xt @ w[0].T + h @ r[0].T + b[0]).chunk(4, 1)
                i, f = torch.sigmoid(i + pi * c), torch.sigmoid(f + pf * c)
                c = f * c + i * torch.tanh(n)
                h = torch.sigmoid(o + po * c) * torch.tanh(c)
                ys.append(h)
            return [torch.stack(ys).unsqueeze(1), h.unsqueeze(0), c.unsqueeze(0)]

        self.case("LSTM", [rand(4, 2, 3), rand(1, 20, 3), rand(1, 20, 5), rand(1, 20), rand(1, 2, 5), rand(1, 2, 5),
                           rand(1, 15)], expected, gradients=False)

    def test_rnn(self):
        self.recurrent("RNN", torch.rnn_tanh, [0])


if __name__ == "__main__":
    unittest.main()
