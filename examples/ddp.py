# SPDX-License-Identifier: Apache-2.0
"""An ordinary script of DistributedDataParallel: it asks for gloo and knows nothing of tern."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group('gloo')
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(7)
for step in range(30):
    x = torch.randn(64, 32, generator=data)
    y = x.sum(1, keepdim=True)
    mine = slice(rank * 64 // size, (rank + 1) * 64 // size)
    loss = nn.functional.mse_loss(model(x[mine]), y[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.all_reduce(loss)
if rank == 0:
    print(f'{dist.get_backend()}: loss {loss.item() / size:.3f}')
dist.destroy_process_group()
