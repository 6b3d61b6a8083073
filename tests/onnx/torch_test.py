#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small models exported by PyTorch with symbolic dims give its outputs, for other sizes than those at export.

Usage: torch_test.py TERN [MODEL...]

An MLP, recurrent layers, a sequence-to-sequence model with attention, transformers; opset 11 and 16.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings('ignore')

RTOL = 1e-5
WORDS = 50


def models():
    """name -> (model, example inputs, axes that are symbolic, whether the graph can be made without sizes)"""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

        def forward(self, x):
            batch, length, width = x.shape
            q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            a = (q @ k.transpose(-1, -2) / (width // self.heads) ** .5).softmax(-1)
            return self.out((a @ v).transpose(1, 2).reshape(batch, length, width))

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.attention, self.norm1, self.norm2 = Attention(width, 4), nn.LayerNorm(width), nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Language(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(64, width)
            self.blocks = nn.Sequential(Block(width), Block(width))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

        def forward(self, words):
            x = self.words(words) + self.places(torch.arange(words.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    class Recurrent(nn.Module):
        def __init__(self, kind, **more):
            super().__init__()
            self.words, self.cell = nn.Embedding(WORDS, 12), kind(12, 20, batch_first=True, **more)
            self.head = nn.Linear(40 if more.get('bidirectional') else 20, WORDS)

        def forward(self, words):
            return self.head(self.cell(self.words(words))[0])

    class Translation(nn.Module):
        def __init__(self, hidden=20):
            super().__init__()
            self.source, self.target = nn.Embedding(WORDS, 12), nn.Embedding(WORDS, 12)
            self.encoder, self.decoder = nn.GRU(12, hidden, batch_first=True), nn.GRU(12, hidden, batch_first=True)
            self.head = nn.Linear(2 * hidden, WORDS)

        def forward(self, source, target):
            keys, state = self.encoder(self.source(source))
            queries, _ = self.decoder(self.target(target), state)
            attention = torch.softmax(queries @ keys.transpose(1, 2), -1)
            return self.head(torch.cat([queries, attention @ keys], -1))

    def words(length=7):
        return torch.randint(0, WORDS, (2, length))

    rows, sequences = {0: 'batch'}, {0: 'batch', 1: 'length'}
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(.5), nn.Linear(32, 10), nn.LogSoftmax(1))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0), 2)
    return {
        'mlp': (mlp, (torch.rand(3, 1, 28, 28),), (rows,), True),
        'rnn': (Recurrent(nn.RNN), (words(),), (sequences,), True),
        'lstm': (Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (words(),), (sequences,), True),
        'gru': (Recurrent(nn.GRU), (words(),), (sequences,), True),
        'translation': (Translation(), (words(), words(5)), (sequences, {0: 'batch', 1: 'out'}), True),
        # dims that are products of symbolic ones: made for the sizes of the inputs
        'language': (Language(), (words(),), (sequences,), False),
        # PyTorch 2 writes the length of its example into the file
        'encoder': (encoder, (torch.rand(2, 5, 16),), (sequences if torch.__version__ < '2' else rows,), False),
    }


def tern(command, *args):
    done = subprocess.run([command, 'graph', *args, '--json'], capture_output=True, text=True, check=False,
                          timeout=120, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f'tern graph {" ".join(args)}: {done.stderr}')
    return json.loads(done.stdout)


def check(command, name, model, inputs, axes, symbolic, opset):
    import numpy
    import torch
    model.eval()
    names = [f'x{i}' for i in range(len(inputs))]
    other = [torch.cat([x, x[:1]], 0) for x in inputs]
    other = [torch.cat([x, x[:, :2]], 1) if len(a) > 1 else x for x, a in zip(other, axes)]
    with torch.no_grad():
        want = model(*other).numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'model.onnx')
        try:
            torch.onnx.export(model, inputs, path, input_names=names, output_names=['y'], opset_version=opset,
                              dynamic_axes={**dict(zip(names, axes)), 'y': {0: 'batch'}})
        except torch.onnx.errors.UnsupportedOperatorError as error:  # of PyTorch 2: encoders from opset 14 on
            assert opset < 14, error
            print(f'{name}, opset {opset}: PyTorch {torch.__version__} can\'t write it: {error}')
            return True
        if symbolic:
            shown = tern(command, 'show', path)
            parameters = sum(p.numel() for p in model.parameters())
            assert shown['inputs'][0]['shape'][0] == 'batch', shown['inputs']
            assert shown['parameters'] == parameters, (shown['parameters'], parameters)
        for x, array in zip(names, other):
            numpy.save(os.path.join(folder, f'{x}.npy'), array.numpy())
        tern(command, 'run', path, '--inputs', ','.join(f'{x}={folder}/{x}.npy' for x in names), '--output', folder)
        got = numpy.load(os.path.join(folder, 'y.npy'))
    assert got.shape == want.shape, (got.shape, want.shape)
    error = numpy.abs(got - want).max() / numpy.abs(want).max()
    print(f'{name}, opset {opset}: outputs differ by {error:.2g} of the largest')
    return error <= RTOL


def main():
    try:
        import numpy  # noqa: F401
        import torch
    except ImportError as error:
        print(f'skipped: {error}')
        return 77
    torch.manual_seed(5)
    torch.set_num_threads(1)
    bad = []
    for name, (model, inputs, axes, symbolic) in models().items():
        for opset in (11, 16):
            if (not sys.argv[2:] or name in sys.argv[2:]) and \
                    not check(sys.argv[1], name, model, inputs, axes, symbolic, opset):
                bad.append(f'{name}, opset {opset}')
    for line in bad:
        print(f'FAILED {line}: outputs differ by more than {RTOL}')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
