#!/usr/bin/env python3
"""One rank of a training: a small model in torch's DistributedDataParallel, or with --fsdp in its fully_shard (FSDP2), the same data and
the same start in every run.

Environment as for workload.py. Prints `ready PID`, waits until the file --wait-file exists, trains, and prints `done`, a checksum of
the losses of all iterations bit by bit, the last loss and the seconds that it took.
"""

import argparse
import hashlib
import os
import struct
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
from torch import nn


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait-file")
    parser.add_argument("--iters", type=int, default=1000)
    parser.add_argument("--fsdp", action="store_true")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    width = 1024
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(width, 16)).to(device)
    if args.fsdp:
        from torch.distributed.fsdp import fully_shard

        for layer in (layer for layer in model if isinstance(layer, nn.Linear)):
            fully_shard(layer)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator(device=device).manual_seed(rank + 1)
    teacher = torch.randn(width, 16, device=device, generator=torch.Generator(device=device).manual_seed(99))

    def step():
        inputs = torch.randn(256, width, device=device, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), (inputs @ teacher).tanh())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    print(f"ready {os.getpid()}", flush=True)
    while args.wait_file and not os.path.exists(args.wait_file):
        time.sleep(0.02)
    began, losses = time.monotonic(), []
    for _ in range(args.iters):
        losses.append(step())
    curve = torch.stack(losses).cpu().tolist()
    seconds = time.monotonic() - began
    checksum = hashlib.sha256(b"".join(struct.pack("<f", loss) for loss in curve)).hexdigest()
    print(f"done {checksum} loss {curve[0]:.6f} to {curve[-1]:.6f}", flush=True)
    print(f"seconds {seconds:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
