#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision, exported to ONNX with random weights, give PyTorch's logits.

Usage: torchvision_test.py TERN [MODEL...]     (alexnet, vgg16, inception_v3)

Logits may differ by 1e-4 of the largest one. Each model is exported with a symbolic batch.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings('ignore')

RTOL = 1e-4
MODELS = {  # image size, parameters of the export
    'alexnet': (224, 61_100_840),
    'vgg16': (224, 138_357_544),
    'inception_v3': (299, 23_834_568),  # without the auxiliary classifier, which is not exported
}


def make(name):
    import torch
    import torchvision
    torch.manual_seed(7)
    more = {'init_weights': False} if name == 'inception_v3' else {}
    model = getattr(torchvision.models, name)(weights=None, **more).eval()
    with torch.no_grad():  # running statistics that are not those of the first step
        for key, buffer in model.named_buffers():
            if key.endswith('running_mean'):
                buffer.normal_(0, 0.1)
            if key.endswith('running_var'):
                buffer.uniform_(0.5, 1.5)
    return model


def export(name, folder):
    """model.onnx, image.npy and want.npy."""
    import numpy
    import torch
    size, _ = MODELS[name]
    model = make(name)
    image = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        logits = model(image)
    torch.onnx.export(model, image[:1], os.path.join(folder, 'model.onnx'), input_names=['image'],
                      output_names=['logits'], opset_version=13, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.PRESERVE,
                      dynamic_axes={'image': {0: 'batch'}, 'logits': {0: 'batch'}})
    numpy.save(os.path.join(folder, 'image.npy'), image.numpy())
    numpy.save(os.path.join(folder, 'want.npy'), logits.numpy())


def tern(command, *args):
    done = subprocess.run([command, 'graph', *args], capture_output=True, text=True, check=False, timeout=300,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f'tern graph {" ".join(args)}: {done.stderr}')
    return json.loads(done.stdout)


def check(command, name):
    import numpy
    with tempfile.TemporaryDirectory(prefix='tern-test-onnx-') as folder:
        export(name, folder)
        path = os.path.join(folder, 'model.onnx')
        shown = tern(command, 'show', path, '--json')
        tern(command, 'run', path, '--inputs', f'image={folder}/image.npy', '--output', folder, '--threads', '2',
             '--json')
        got = numpy.load(os.path.join(folder, 'logits.npy'))
        want = numpy.load(os.path.join(folder, 'want.npy'))
    assert shown['inputs'][0]['shape'][0] == 'batch', shown['inputs']
    assert got.shape == want.shape, (got.shape, want.shape)
    error = numpy.abs(got - want).max() / numpy.abs(want).max()
    print(f'{name}: {shown["parameters"]} parameters, {shown["nodes"]} nodes, logits differ by {error:.2g} of the '
          f'largest')
    assert shown['parameters'] == MODELS[name][1], shown['parameters']
    assert numpy.abs(want).max() > 0 and numpy.ptp(want) > 0
    return error <= RTOL


def main():
    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        print(f'skipped: {error}')
        return 77
    bad = [name for name in sys.argv[2:] or MODELS if not check(sys.argv[1], name)]
    for name in bad:
        print(f'FAILED {name}: logits differ by more than {RTOL}')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
