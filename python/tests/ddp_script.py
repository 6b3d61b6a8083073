# SPDX-License-Identifier: Apache-2.0
"""An ordinary DDP script: nothing in it knows of tern. Prints losses, and how long a step takes.

--model convnet: the convolutional net of PyTorch's own MNIST example; else one of --width channels.
--data fashion-mnist: of Debian's dataset-fashion-mnist, each rank its share of each batch; else noisy templates.
--stub leaves the gradients as they are: what a step costs without communication.
"""
import argparse
import gzip
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FASHION = '/usr/share/datasets/fashion-mnist'


def small(width):
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(2 * width * 49, 128), nn.ReLU(), nn.Linear(128, 10))


def convnet():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def templates(count):
    """Images and labels, the same at all ranks."""
    generator = torch.Generator().manual_seed(7)
    shapes = torch.randn(10, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return shapes[labels] + 0.5 * torch.randn(count, 1, 28, 28, generator=generator), labels


def idx(name, head, count, folder):
    with gzip.open(f'{folder}/{name}.gz') as file:
        file.read(head)
        return torch.frombuffer(bytearray(file.read(count)), dtype=torch.uint8)


def fashion(count, folder):
    images = idx('train-images-idx3-ubyte', 16, count * 784, folder).view(-1, 1, 28, 28)
    labels = idx('train-labels-idx1-ubyte', 8, count, folder)
    return (images / 255 - 0.2860) / 0.3530, labels.long()


def keep(_state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument('--steps', type=int, default=10)
    parser.add_argument('--batch', type=int, default=16, help='of one rank')
    parser.add_argument('--model', choices=('small', 'convnet'), default='small')
    parser.add_argument('--width', type=int, default=8)
    parser.add_argument('--data', choices=('templates', 'fashion-mnist'), default='templates')
    parser.add_argument('--folder', default=FASHION)
    parser.add_argument('--lr', type=float, default=0.02)
    parser.add_argument('--stub', action='store_true')
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = DistributedDataParallel(convnet() if args.model == 'convnet' else small(args.width))
    if args.stub:
        net.register_comm_hook(None, keep)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    count = args.steps * args.batch * size
    images, labels = fashion(count, args.folder) if args.data == 'fashion-mnist' else templates(count)
    losses, start = [], None
    for step in range(args.steps):
        first = (step * size + rank) * args.batch
        mine = slice(first, first + args.batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step == 1:
            start = time.perf_counter()
    took = (time.perf_counter() - start) / (args.steps - 2) if args.steps > 2 else 0
    losses = torch.stack(losses)
    if not args.stub:
        dist.all_reduce(losses)
    if rank == 0:
        print('backend', dist.get_backend())
        print('losses', *(f'{loss / size:.6f}' for loss in losses.tolist()))
        print(f'step {took * 1e3:.3f} ms')
    dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
