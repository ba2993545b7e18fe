#!/usr/bin/env python3
"""What tracing costs a job: all-reduces back to back, untraced and traced in turn, in one run.

    overhead.py --programs DIR [--bytes N] [--rounds R] [--net]

Starts a rank per GPU. In each round the job runs some seconds under each of: nothing, `ncclflow record --level flow`, `--level steps`.
Prints, per level, the median time of an operation and of its launch, and their ratios to the untraced ones, as JSON.
"""

import argparse
import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def rank_main(args):
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    tensor = torch.ones(args.bytes // 4, device="cuda")
    # NCCL keeps no state of the payload, and a product with one keeps the numbers finite.
    batch = max(2, min(200, int(2e9) // max(args.bytes, 1 << 20)))
    for _ in range(20):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    torch.cuda.synchronize()
    print("ready", os.getpid(), flush=True)
    stop = torch.zeros(1, device="cuda")
    while True:
        begin = time.monotonic_ns()
        for _ in range(batch):
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        launched = time.monotonic_ns()
        torch.cuda.synchronize()
        end = time.monotonic_ns()
        print("batch", begin, end, (end - begin) / batch, (launched - begin) / batch, flush=True)
        # All ranks must leave together.
        if rank == 0 and os.path.exists(args.stop_file):
            stop.fill_(1)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="target/release")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--levels", default="flow,steps")
    parser.add_argument("--net", action="store_true", help="all traffic through the network transport")
    parser.add_argument("--stop-file", help=argparse.SUPPRESS)
    parser.add_argument("--rank-main", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_main:
        return rank_main(args)

    folder = tempfile.mkdtemp(prefix="ncclflow-overhead-")
    args.stop_file = os.path.join(folder, "stop")
    environment = dict(os.environ, WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    if args.net:
        environment.update(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    outputs = [os.path.join(folder, f"rank{rank}") for rank in range(args.ranks)]
    command = [sys.executable, __file__, "--rank-main", "--bytes", str(args.bytes), "--stop-file", args.stop_file]
    ranks = [
        subprocess.Popen(command, env=dict(environment, RANK=str(rank)), stdout=open(outputs[rank], "w"))
        for rank in range(args.ranks)
    ]

    def lines(rank):
        with open(outputs[rank]) as file:
            return [line.split() for line in file if line.endswith("\n")]

    deadline = time.time() + 90
    while not all(any(line[0] == "ready" for line in lines(rank)) for rank in range(args.ranks)):
        if time.time() > deadline or any(rank.poll() is not None for rank in ranks):
            sys.exit("the job did not come up")
        time.sleep(0.2)
    pids = ",".join(next(line[1] for line in lines(rank) if line[0] == "ready") for rank in range(args.ranks))

    atexit.register(lambda: [rank.kill() for rank in ranks if rank.poll() is None])
    # (level, begin, end) in CLOCK_MONOTONIC nanoseconds; time.monotonic_ns() is that clock on Linux.
    windows, lost = [], 0
    for number in range(args.rounds):
        begin = time.monotonic_ns()
        time.sleep(args.seconds)
        windows.append(("untraced", begin, time.monotonic_ns()))
        for level in args.levels.split(","):
            out = os.path.join(folder, f"{level}{number}")
            subprocess.run(
                [os.path.join(args.programs, "ncclflow"), "record", "-q", "-p", pids, "-o", out, "--level", level,
                 "-d", str(args.seconds), "--buffer-size", "256"],
                check=True,
            )
            with open(os.path.join(out, "session.json")) as file:
                session = json.load(file)
            clock = session["clock"]
            windows.append((level, clock["started_monotonic_ns"] + 300_000_000, clock["started_monotonic_ns"] + int(args.seconds * 1e9)))
            lost += session["loss"]["records_lost"]
            shutil.rmtree(out)
    open(args.stop_file, "w").close()
    for rank in ranks:
        rank.wait(60)

    batches = [tuple(map(float, line[1:])) for line in lines(0) if line[0] == "batch"]
    result = {"bytes": args.bytes, "ranks": args.ranks, "net": args.net, "records_lost": lost, "levels": {}}
    for level in ["untraced"] + args.levels.split(","):
        inside = [
            (op, launch)
            for begin, end, op, launch in batches
            if any(name == level and first <= begin and end <= last for name, first, last in windows)
        ]
        if not inside:
            result["levels"][level] = None
            continue
        ops, launches = [op for op, _ in inside], [launch for _, launch in inside]
        result["levels"][level] = {
            "batches": len(inside),
            "op_us": round(statistics.median(ops) / 1e3, 2),
            "launch_us": round(statistics.median(launches) / 1e3, 2),
            "op_us_quartiles": [round(q / 1e3, 2) for q in statistics.quantiles(ops, n=4)] if len(ops) > 1 else None,
        }
    untraced = result["levels"]["untraced"]
    for level, numbers in result["levels"].items():
        if numbers and untraced:
            numbers["op_ratio"] = round(numbers["op_us"] / untraced["op_us"], 3)
            numbers["launch_ratio"] = round(numbers["launch_us"] / untraced["launch_us"], 3)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
