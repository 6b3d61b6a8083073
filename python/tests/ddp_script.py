# SPDX-License-Identifier: Apache-2.0
"""An ordinary DDP script: nothing in it knows of tern. Prints losses, and how long a step takes.

--stub leaves the gradients as they are: what a step costs without communication.
"""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def model(width):
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(2 * width * 49, 128), nn.ReLU(), nn.Linear(128, 10))


def keep(_state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--steps', type=int, default=10)
    parser.add_argument('--width', type=int, default=8)
    parser.add_argument('--stub', action='store_true')
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = DistributedDataParallel(model(args.width))
    if args.stub:
        net.register_comm_hook(None, keep)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    templates = torch.randn(10, 1, 28, 28, generator=generator)
    losses, start = [], None
    for step in range(args.steps):
        labels = torch.randint(10, (16 * size,), generator=generator)
        images = templates[labels] + 0.5 * torch.randn(16 * size, 1, 28, 28, generator=generator)
        mine = slice(rank * 16, rank * 16 + 16)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        if not args.stub:
            dist.all_reduce(total)
        losses.append(total.item() / size)
        if step == 1:
            start = time.perf_counter()
    if rank == 0:
        print('backend', dist.get_backend())
        print('losses', *(f'{loss:.6f}' for loss in losses))
        if start is not None and args.steps > 2:
            print(f'step {(time.perf_counter() - start) / (args.steps - 2) * 1e3:.2f} ms')
    dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
