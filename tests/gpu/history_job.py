#!/usr/bin/env python3
"""One rank of a job with several process groups, and what torch's own flight recorder has of it.

Environment as for workload.py. Prints `ready PID`, waits until the file --wait-file exists, runs, waits until torch's watchdog has noticed all of it, writes
torch's own dump to --entries as JSON, prints `still`, and waits until --leave exists. Then all ranks but the last call collectives once more; all print
`absent` and sleep.
"""

import argparse
import json
import os
import pickle
import time

import torch
import torch.distributed as dist


def wait_for(path):
    while path and not os.path.exists(path):
        time.sleep(0.02)


class Trainer:
    def __init__(self, device):
        world = dist.get_world_size()
        self.device, self.data = device, torch.ones(1 << 12, device=device)
        self.halves = self.data.to(torch.bfloat16).reshape(16, 256)
        self.tensor = dist.new_group(list(range(world)), group_desc="tensor_parallel")
        self.alone = [dist.new_group([rank], group_desc="a group of one rank with a long description") for rank in range(world)]

    def step(self, number):
        dist.all_reduce(self.data)
        dist.all_reduce(self.halves, group=self.tensor)
        if number % 5 == 0:
            self.evaluate()
        if number % 7 == 0:
            self.exchange()

    def evaluate(self):
        world = dist.get_world_size()
        scores = torch.rand(8, device=self.device)
        gathered = torch.empty(8 * world, device=self.device)
        dist.all_gather_into_tensor(gathered, scores, group=self.tensor)
        dist.all_gather([torch.empty(8, device=self.device) for _ in range(world)], scores)
        dist.reduce_scatter_tensor(scores, gathered)
        (lambda: dist.broadcast(self.data, 0, group=self.tensor))()
        dist.barrier()

    def exchange(self):
        world, rank = dist.get_world_size(), dist.get_rank()
        if world < 2:
            return
        received = torch.empty_like(self.data)
        calls = [dist.P2POp(dist.isend, self.data, (rank + 1) % world), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait-file")
    parser.add_argument("--leave")
    parser.add_argument("--entries", required=True)
    parser.add_argument("--own", help="what the flight recorder has once a rank is away goes to this path and the rank")
    parser.add_argument("--iters", type=int, default=900)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    trainer = Trainer(device)
    trainer.step(0)
    torch.cuda.synchronize()
    print(f"ready {os.getpid()}", flush=True)
    wait_for(args.wait_file)
    for number in range(args.iters):
        trainer.step(number)
    torch.cuda.synchronize()
    # The watchdog looks every 100 ms. A dump asks the events itself, and changes nothing any more.
    time.sleep(2)
    trace = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())
    trace["torch"] = torch.__version__
    with open(f"{args.entries}.{rank}", "w") as file:
        json.dump({key: trace[key] for key in ("torch", "entries", "pg_config", "pg_status")}, file)
    print("still", flush=True)
    wait_for(args.leave)
    if rank < dist.get_world_size() - 1:
        trainer.step(1)
    if args.own:
        time.sleep(1)
        with open(f"{args.own}{rank}", "wb") as file:
            file.write(torch._C._distributed_c10d._dump_nccl_trace())
    print("absent", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main()
