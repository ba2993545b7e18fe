#!/usr/bin/env python3
"""One rank of a torch job that uses NCCL on real GPUs, and checks every result.

Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torch wants them. Prints `ready PID` when its communicator is
up, waits until the file --wait-file exists, runs the operations, prints `done` and a checksum over all results, and ends
with 0 only if every element was right.
"""

import argparse
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait-file", help="start when this file exists")
    parser.add_argument("--iters", type=int, default=3)
    parser.add_argument("--elements", default=str(1 << 20), help="float32 elements, a comma list; must divide by the ranks")
    parser.add_argument("--comms", type=int, default=1, help="communicators over the same ranks, used in turn")
    parser.add_argument("--absent", help="RANK@ITER: this rank does not join from this iteration on, prints `absent` and stays")
    parser.add_argument("--graph", action="store_true", help="capture each operation in a CUDA graph, and replay it --iters times")
    parser.add_argument("--ops", default="allreduce,allgather,reducescatter,broadcast,sendrecv,alltoall")
    return parser.parse_args()


def pattern(rank, iteration, elements, device):
    """Small whole numbers: sums are exact in float32, so results do not depend on the order of addition."""
    base = torch.arange(elements, device=device, dtype=torch.float32) % 251
    return base + rank * 3 + iteration


def run_op(name, iteration, elements, rank, world, device, group=None):
    """Runs one operation; returns (result, expected)."""
    mine = pattern(rank, iteration, elements, device)
    everyone = [pattern(r, iteration, elements, device) for r in range(world)]
    part = elements // world
    if name == "allreduce":
        dist.all_reduce(mine, group=group)
        return mine, sum(everyone)
    if name == "allgather":
        out = torch.empty(elements * world, device=device)
        dist.all_gather_into_tensor(out, mine, group=group)
        return out, torch.cat(everyone)
    if name == "reducescatter":
        out = torch.empty(part, device=device)
        dist.reduce_scatter_tensor(out, mine, group=group)
        return out, sum(everyone)[rank * part : (rank + 1) * part]
    if name == "broadcast":
        dist.broadcast(mine, src=iteration % world, group=group)
        return mine, everyone[iteration % world]
    if name == "sendrecv":
        out = torch.empty(elements, device=device)
        right, left = (rank + 1) % world, (rank - 1) % world
        requests = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, right, group), dist.P2POp(dist.irecv, out, left, group)]
        )
        for request in requests:
            request.wait()
        return out, everyone[left]
    if name == "alltoall":
        out = torch.empty(elements, device=device)
        dist.all_to_all_single(out, mine, group=group)
        return out, torch.cat([tensor[rank * part : (rank + 1) * part] for tensor in everyone])
    raise SystemExit(f"unknown operation {name}")


def run_graphs(args, rank, world, device):
    """Captures each operation once and replays it; returns (checksum, wrong elements)."""
    checksum, wrong = hashlib.sha256(), 0
    for elements in map(int, args.elements.split(",")):
        for name in args.ops.split(","):
            inputs = pattern(rank, 0, elements, device)
            everyone = [pattern(other, 0, elements, device) for other in range(world)]
            part = elements // world
            buffer = torch.empty_like(inputs)
            parts = torch.empty(elements * world if name == "allgather" else part, device=device)
            operation, result, expected = {
                "allreduce": (lambda: dist.all_reduce(buffer), buffer, sum(everyone)),
                "broadcast": (lambda: dist.broadcast(buffer, src=1), buffer, everyone[1]),
                "allgather": (lambda: dist.all_gather_into_tensor(parts, buffer), parts, torch.cat(everyone)),
                "reducescatter": (
                    lambda: dist.reduce_scatter_tensor(parts, buffer),
                    parts,
                    sum(everyone)[rank * part : (rank + 1) * part],
                ),
            }[name]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                operation()
            for _ in range(args.iters):
                buffer.copy_(inputs)
                graph.replay()
                torch.cuda.synchronize()
                wrong += int((result != expected).sum())
                checksum.update(result.cpu().numpy().tobytes())
    return checksum, wrong


def main():
    args = parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    # Connections are made on first use: make them all before anything is recorded.
    groups = [None] + [dist.new_group(list(range(world))) for _ in range(args.comms - 1)]
    for group in groups:
        for name in args.ops.split(","):
            run_op(name, 0, world * 4, rank, world, device, group)
    torch.cuda.synchronize()
    print(f"ready {os.getpid()} nccl {'.'.join(map(str, torch.cuda.nccl.version()))}", flush=True)
    while args.wait_file and not os.path.exists(args.wait_file):
        time.sleep(0.02)

    if args.graph:
        checksum, wrong = run_graphs(args, rank, world, device)
        print(f"done wrong {wrong} checksum {checksum.hexdigest()}", flush=True)
        # Destroying a communicator waits for the graphs that use it.
        os._exit(1 if wrong else 0)

    checksum, wrong = hashlib.sha256(), 0
    absent = tuple(map(int, args.absent.split("@"))) if args.absent else None
    for iteration in range(args.iters):
        if absent and (rank, iteration) == absent:
            print("absent", flush=True)
            time.sleep(3600)
        group = groups[iteration % len(groups)]
        for elements in map(int, args.elements.split(",")):
            for name in args.ops.split(","):
                result, expected = run_op(name, iteration, elements, rank, world, device, group)
                torch.cuda.synchronize()
                wrong += int((result != expected).sum())
                checksum.update(result.cpu().numpy().tobytes())
    print(f"done wrong {wrong} checksum {checksum.hexdigest()}", flush=True)
    dist.destroy_process_group()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
