#!/usr/bin/env python3
"""A rank of a torch job that launches CUDA graphs in every way that a recording has to tell apart, and says what it did.

Prints `ready PID`, waits for --wait-file, and ends with a line `truth {…}`: launches of all graphs, of those captured before the file was
there, of those without NCCL, and each replayed collective, by function and bytes.
"""

import argparse
import collections
import json
import os
import time

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait-file")
    parser.add_argument("--times", type=int, default=7)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    small, large = (torch.zeros(elements, device=device) for elements in (1024, 1 << 18))
    gathered = torch.zeros(1024 * world, device=device)

    def few():
        dist.all_reduce(small)

    def many():
        dist.all_reduce(large)
        dist.all_gather_into_tensor(gathered, small)
        dist.all_reduce(large)

    def captured(operations):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            operations()
        return graph

    few()
    many()
    torch.cuda.synchronize()
    early = captured(few)
    print(f"ready {os.getpid()}", flush=True)
    while args.wait_file and not os.path.exists(args.wait_file):
        time.sleep(0.02)

    launches = unknown = without = wrong = 0
    replayed = collections.Counter()
    holds = {few: {"AllReduce 4096": 1}, many: {f"AllReduce {4 << 18}": 2, "AllGather": 1}}

    def replay(graph, operations, times):
        nonlocal launches
        for _ in range(times):
            graph.replay()
        torch.cuda.synchronize()
        launches += times
        for name, count in holds.get(operations, {}).items():
            replayed[name] += count * times

    # Captured before the recording began.
    replay(early, None, args.times)
    unknown += args.times
    # Nothing of NCCL's in it.
    alone = captured(lambda: small.add_(0))
    replay(alone, None, args.times)
    without += args.times
    # Two that live at the same time, one of which is captured when the other has been launched.
    first = captured(few)
    replay(first, few, args.times)
    second = captured(many)
    for _ in range(args.times):
        replay(second, many, 1)
        replay(first, few, 2)
    # Others in the place of one that is no more, often at its address.
    del first
    for turn in range(4):
        other = captured(many if turn % 2 else few)
        replay(other, many if turn % 2 else few, turn + 1)
        del other
    # As servers do: all sizes are captured first, then launched in turn.
    sizes = [captured(many if turn % 3 else few) for turn in range(9)]
    for _ in range(args.times):
        for turn, graph in enumerate(sizes):
            replay(graph, many if turn % 3 else few, 1)
    # Sums of zeroes.
    wrong += int((small != 0).sum()) + int((large != 0).sum()) + int((gathered != 0).sum())
    truth = {"rank": rank, "launches": launches, "unknown": unknown, "without_ops": without, "replayed": dict(replayed)}
    truth |= {"early": {"AllReduce 4096": args.times}, "wrong": wrong}
    print(f"truth {json.dumps(truth)}", flush=True)
    # Destroying a communicator waits for the graphs that use it.
    os._exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
