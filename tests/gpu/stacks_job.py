#!/usr/bin/env python3
"""One rank of a job that calls NCCL from many places, and what torch's own flight recorder has of it.

Environment as for workload.py. Prints `ready PID`, waits until the file --wait-file exists, runs, writes the flight recorder's entries to
--entries as JSON, with --trace the trace of torch's profiler to that file, and prints `done`.
"""

import argparse
import contextlib
import json
import os
import pickle
import time

import torch
import torch.distributed as dist
from torch import nn


def decorated(function):
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


class Trainer:
    def __init__(self, device):
        self.device, self.data = device, torch.ones(1 << 16, device=device)
        layers = [nn.Linear(256, 256) for _ in range(3)]
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    @decorated
    def activations(self):
        dist.all_reduce(self.data)

    def step(self):
        loss = self.model(torch.randn(64, 256, device=self.device)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.activations()

    def evaluate(self):
        with torch.no_grad():
            scores = torch.rand(8, device=self.device)
            gathered = torch.empty(8 * dist.get_world_size(), device=self.device)
            dist.all_gather_into_tensor(gathered, scores)
            for parts in (torch.empty(8, device=self.device) for _ in range(2)):
                dist.reduce_scatter_tensor(parts, gathered)

    def exchange(self):
        other = 1 - dist.get_rank()
        received = torch.empty_like(self.data)
        calls = [dist.P2POp(dist.isend, self.data, other), dist.P2POp(dist.irecv, received, other)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    def deep(self, levels):
        if levels:
            return self.deep(levels - 1)
        return (lambda: dist.broadcast(self.data, 0))()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait-file")
    parser.add_argument("--entries", required=True)
    parser.add_argument("--trace")
    parser.add_argument("--iters", type=int, default=100)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    trainer = Trainer(device)
    for _ in range(3):
        trainer.step()
    trainer.exchange()
    torch.cuda.synchronize()
    print(f"ready {os.getpid()}", flush=True)
    while args.wait_file and not os.path.exists(args.wait_file):
        time.sleep(0.02)
    profiler = torch.profiler.profile(with_stack=True) if args.trace else contextlib.nullcontext()
    with profiler:
        for number in range(args.iters):
            trainer.step()
            if number % 5 == 0:
                trainer.evaluate()
                trainer.exchange()
                trainer.deep(number % 7)
        torch.cuda.synchronize()
    if args.trace:
        profiler.export_chrome_trace(f"{args.trace}.{rank}.json")
    trace = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())
    with open(f"{args.entries}.{rank}", "w") as file:
        json.dump([{key: entry[key] for key in ("profiling_name", "frames")} for entry in trace["entries"]], file)
    print("done", flush=True)
    time.sleep(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
