#!/usr/bin/env python3
"""What tracing costs a job: all-reduces back to back, untraced and traced in turn, in one run.

    overhead.py --programs DIR [--bytes N] [--rounds R] [--net] [--caller nccl] [--pin] [--ways LIST] [--json FILE]

Starts a rank per GPU, a process of torch, or one that calls ncclAllReduce by itself (`--caller nccl`), as nccl-tests do: torch takes
long enough for a call that small operations wait for their launch, and the GPU for them. In each round the job runs some seconds under each of: nothing, `ncclflow record --level api`, the same with
`--returns`, `--level flow` (whole plans), `--level flow --probes per-call`, `--level steps`, and the kernel's own uprobe tracer
(tracefs, nothing fetched): on the functions of per-call, and (`trap`) on the one function of whole plans, which is what any uprobe
costs at least. The order is another one in every round.
Prints, per way, the time of an operation and of its launch, their ratios to the untraced ones of the same round (median, min, max), and
the traps per operation by the kernel's own counts, as JSON. Needs root; tracefs is mounted in a mount namespace of its own.
"""

import argparse
import atexit
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def torch_caller(args, rank):
    """Returns what launches an operation, what waits for all of them, and what gives the largest of the ranks' numbers."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    tensor = torch.ones(args.bytes // 4, device="cuda")
    stop = torch.zeros(1, device="cuda")

    def largest(value):
        stop.fill_(value)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        return stop.item()

    return lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX), torch.cuda.synchronize, largest


def nccl_caller(args, rank):
    """The same, by NCCL's own functions."""
    import array
    import ctypes
    import importlib.util

    import direct_nccl

    # Torch's, which is not loaded.
    package = importlib.util.find_spec("nvidia.nccl").submodule_search_locations[0]
    gpu, nccl = direct_nccl.Gpu(rank), direct_nccl.Library(os.path.join(package, "lib", "libnccl.so.2"))
    comm = direct_nccl.communicator(nccl, rank, int(os.environ["WORLD_SIZE"]), args.stop_file + ".id")
    elements = args.bytes // 4
    buffer = gpu.memory(elements)
    gpu.write(buffer, array.array("f", [1.0]) * elements)
    # What calls are given is made before, as Python's part of a launch is to be small.
    all_reduce = nccl.functions.ncclAllReduce
    memory, count = ctypes.c_void_p(buffer), ctypes.c_size_t(elements)
    data, redop = ctypes.c_int(direct_nccl.FLOAT32), ctypes.c_int(direct_nccl.MAX)
    stream, one = gpu.stream, ctypes.c_size_t(1)

    def launch():
        if all_reduce(memory, memory, count, data, redop, comm, stream):
            sys.exit("ncclAllReduce failed")

    def largest(value):
        gpu.write(buffer, array.array("f", [1.0 + value]))
        all_reduce(memory, memory, one, data, redop, comm, stream)
        gpu.wait()
        return gpu.read(buffer, 1)[0] - 1.0

    return launch, gpu.wait, largest


def job_processors(ranks):
    """With `--pin`: one for the launching thread of each rank, none of which is likely to share a core with another."""
    processors = sorted(os.sched_getaffinity(0))
    return [processors[(len(processors) // 2) * rank // ranks + 1] for rank in range(ranks)]


def tracer_processors():
    """With `--pin`: the upper half."""
    processors = sorted(os.sched_getaffinity(0))
    return processors[len(processors) // 2 :]


def rank_main(args):
    rank = int(os.environ["RANK"])
    launch, wait, largest = (torch_caller if args.caller == "torch" else nccl_caller)(args, rank)
    # All-reduces of the largest number keep the numbers as they are.
    batch = max(2, min(200, int(2e9) // max(args.bytes, 1 << 20)))
    for _ in range(20):
        launch()
    wait()
    if args.pin:
        os.sched_setaffinity(0, {job_processors(args.ranks)[rank]})
    print("ready", os.getpid(), flush=True)
    while True:
        begin = time.monotonic_ns()
        for _ in range(batch):
            launch()
        launched = time.monotonic_ns()
        wait()
        end = time.monotonic_ns()
        print("batch", begin, end, (end - begin) / batch, (launched - begin) / batch, flush=True)
        # All ranks must leave together.
        if largest(1.0 if rank == 0 and os.path.exists(args.stop_file) else 0.0):
            break
    # Not by way of the library's and Python's endings, which have nothing to say here.
    sys.stdout.flush()
    os._exit(0)


RECORD = {
    "api": ["--level", "api"],
    "api-stacks": ["--level", "api", "--stacks"],
    "api-returns": ["--level", "api", "--returns"],
    "flow": ["--level", "flow"],
    "flow-api": ["--level", "flow", "--api"],
    "flow-stacks": ["--level", "flow", "--stacks"],
    "flow-per-call": ["--level", "flow", "--probes", "per-call"],
    "steps": ["--level", "steps"],
}
# The kernel's own tracer, on these functions.
TRACEFS = {"tracefs": ["ncclProxySaveOp", "SaveProxy"], "trap": ["ncclLaunchKernelAfter_NoCuda"]}
# What is not counted at the beginning of a turn: attaching, and its echo.
SETTLE_NS = 300_000_000


class Tracefs:
    """Uprobes of the kernel's own tracer, with nothing fetched and nobody reading."""

    def __init__(self, programs, pid, functions):
        library = next(
            line.split()[-1] for line in open(f"/proc/{pid}/maps") if re.search(r"/libnccl[^/]*$", line.strip())
        )
        symbols = json.loads(subprocess.check_output([os.path.join(programs, "ncclflow"), "symbols", "--json", library]))
        copies = [copy for name in functions for copy in symbols["functions"][name]]
        self.folder = "/sys/kernel/tracing"
        if not os.path.exists(os.path.join(self.folder, "uprobe_events")):
            self.folder = tempfile.mkdtemp(prefix="ncclflow-tracefs-")
            subprocess.run(["mount", "-t", "tracefs", "tracefs", self.folder], check=True)
            atexit.register(lambda: subprocess.run(["umount", self.folder]))
        self.group = f"ncclflow_{os.getpid()}_{functions[0]}"
        self.events = [f"f{number}" for number in range(len(copies))]
        self.lines = [
            f"p:{self.group}/{event} {library}:{copy['fileOffset']:#x}" for event, copy in zip(self.events, copies)
        ]

    def _write(self, name, lines):
        for line in lines:
            # Not open(…, "a"), which seeks to the end: tracefs refuses that. Opening it otherwise removes the events of others.
            file = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)

    def start(self):
        self._write("uprobe_events", self.lines)
        self._write(f"events/{self.group}/enable", ["1"])

    def stop(self):
        """The number of hits."""
        with open(os.path.join(self.folder, "uprobe_profile")) as file:
            rows = [line.split() for line in file]
        self._write(f"events/{self.group}/enable", ["0"])
        self._write("uprobe_events", [f"-:{self.group}/{event}" for event in self.events])
        return sum(int(row[-1]) for row in rows if row[-2] in self.events)


def traps_of(session):
    """Times that the job ran into the kernel: parts of a walk run inside the hit of their probe, and a return is diverted by a
    breakpoint at the entry, which may serve another probe, too."""
    probes = [probe for probe in session["probes"] if probe.get("part") is None]
    entries = {(probe["symbol"], probe["pid"]) for probe in probes if probe["at"] == "entry"}
    double = lambda probe: probe["at"] == "return" and (probe["symbol"], probe["pid"]) not in entries
    # Hits before the session opened and after it closed fall outside of the operations that are counted.
    return sum((probe["hits"] - probe["disarmed"]) * (2 if double(probe) else 1) for probe in probes)


def spread(values):
    if not values:
        return None
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
        "rounds": len(values),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="target/release")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--ways", default="untraced,api,api-returns,flow,flow-per-call,steps,tracefs,trap")
    parser.add_argument("--json", help="write the result to this file too")
    parser.add_argument("--net", action="store_true", help="all traffic through the network transport")
    parser.add_argument("--caller", choices=["torch", "nccl"], default="torch", help="who calls NCCL in the job (default: torch)")
    parser.add_argument("--pin", action="store_true", help="launching threads and tracer on processors of their own")
    parser.add_argument("--stop-file", help=argparse.SUPPRESS)
    parser.add_argument("--rank-main", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_main:
        return rank_main(args)
    ways = args.ways.split(",")
    if "untraced" not in ways or not all(way in RECORD or way == "untraced" or way in TRACEFS for way in ways):
        sys.exit(f"--ways: untraced and some of {', '.join([*RECORD, *TRACEFS])}")
    if any(way in TRACEFS for way in ways) and "NCCLFLOW_UNSHARED" not in os.environ:
        # What is mounted goes with us.
        os.environ["NCCLFLOW_UNSHARED"] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable] + sys.argv)

    folder = tempfile.mkdtemp(prefix="ncclflow-overhead-")
    args.stop_file = os.path.join(folder, "stop")
    environment = dict(os.environ, WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    if args.net:
        environment.update(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    outputs = [os.path.join(folder, f"rank{rank}") for rank in range(args.ranks)]
    command = [sys.executable, __file__, "--rank-main", "--bytes", str(args.bytes), "--stop-file", args.stop_file]
    command += ["--caller", args.caller, "--ranks", str(args.ranks)] + (["--pin"] if args.pin else [])
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
    tracers = {way: Tracefs(args.programs, pids.split(",")[0], TRACEFS[way]) for way in ways if way in TRACEFS}
    # Per round and way: begin and end in CLOCK_MONOTONIC nanoseconds, which is time.monotonic_ns() on Linux; traps; records lost.
    turns = []
    for number in range(args.rounds):
        for step in range(len(ways)):
            way = ways[(number + step) % len(ways)]
            traps, lost, begin = None, 0, time.monotonic_ns()
            if way in RECORD:
                out = os.path.join(folder, f"{way}{number}")
                subprocess.run(
                    [os.path.join(args.programs, "ncclflow"), "record", "-q", "-p", pids, "-o", out]
                    + RECORD[way]
                    + ["-d", str(args.seconds)],
                    check=True,
                    preexec_fn=(lambda: os.sched_setaffinity(0, tracer_processors())) if args.pin else None,
                )
                with open(os.path.join(out, "session.json")) as file:
                    session = json.load(file)
                begin = session["attach"]["armed_monotonic_ns"]
                end = begin + int(args.seconds * 1e9)
                traps, lost = traps_of(session), session["loss"]["records_lost"]
                shutil.rmtree(out)
            else:
                if way in tracers:
                    tracers[way].start()
                    begin = time.monotonic_ns()
                time.sleep(args.seconds)
                end = time.monotonic_ns()
                if way in tracers:
                    traps = tracers[way].stop()
            turns.append({"round": number, "way": way, "begin": begin, "end": end, "traps": traps, "lost": lost})
    open(args.stop_file, "w").close()
    for rank in ranks:
        rank.wait(60)

    batches = [tuple(map(float, line[1:])) for line in lines(0) if line[0] == "batch"]
    for turn in turns:
        settled = turn["begin"] + SETTLE_NS
        inside = [batch for batch in batches if settled <= batch[0] and batch[1] <= turn["end"]]
        turn["op_us"] = statistics.median(op for _, _, op, _ in inside) / 1e3 if inside else None
        turn["launch_us"] = statistics.median(launch for _, _, _, launch in inside) / 1e3 if inside else None
        # All ranks' traps, over the operations of all ranks in the whole turn.
        if turn["traps"] is not None and turn["op_us"]:
            turn["traps_per_op"] = turn["traps"] / ((turn["end"] - turn["begin"]) / 1e3 / turn["op_us"]) / args.ranks
    untraced = {turn["round"]: turn for turn in turns if turn["way"] == "untraced"}
    result = {"bytes": args.bytes, "ranks": args.ranks, "net": args.net, "caller": args.caller, "pin": args.pin, "rounds": args.rounds, "ways": {}}
    for way in ways:
        of_way = [turn for turn in turns if turn["way"] == way and turn["op_us"]]
        figures = {key: spread([turn[key] for turn in of_way]) for key in ("op_us", "launch_us")}
        for key in ("op", "launch"):
            pairs = [(turn, untraced.get(turn["round"])) for turn in of_way]
            ratios = [turn[f"{key}_us"] / base[f"{key}_us"] for turn, base in pairs if base and base[f"{key}_us"]]
            figures[f"{key}_ratio"] = spread(ratios)
        figures["traps_per_op"] = spread([turn["traps_per_op"] for turn in of_way if "traps_per_op" in turn])
        figures["records_lost"] = sum(turn["lost"] for turn in of_way)
        result["ways"][way] = figures
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
