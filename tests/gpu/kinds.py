"""Kinds of hangs, and of waits that are none, of two torch ranks over NVLink, and what `ncclflow dump` says of each.

    python3 tests/gpu/kinds.py PATH/TO/ncclflow [KIND …]

Needs root, two GPUs and torch. With SHARE_GPU=1 one GPU is enough: each rank is a host of its own to NCCL, and they talk over sockets.
 Each kind has two communicators, one of which is idle. Prints a line for each, and ends with 1 if a state, a
kind or a culprit is not the one that is expected.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

# State, kind of trouble and culprits of the communicator that is wrong; of those that are not, healthy.
EXPECTED = {
    "absent": ("stuck", "notJoined", [1]),
    "cpu": ("waiting", "notJoined", [1]),
    "other": ("stuck", "otherOperation", [0, 1]),
    "compute": ("waiting", "computing", [1]),
    "gone": ("stuck", "gone", [1]),
    "receive": ("stuck", "noCounterpart", [1]),
    "first": ("stuck", "connecting", [1]),
    "ended": ("healthy", None, []),
    "busy": ("healthy", None, []),
}

# Over sockets connections tell more: a broken one of a rank that is gone, and a network proxy that has room and fills nothing.
EXPECTED_OVER_SOCKETS = {**EXPECTED, "compute": ("waiting", "noProgress", [1]), "gone": ("stuck", "failed", [1])}


def rank_main(kind, rank, folder):
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    # With a device the communicators are made at once, and sends and receives use them, too.
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2, device_id=device)
    other = dist.new_group([0, 1])
    data = torch.ones(1 << 20, device="cuda")
    for _ in range(0 if kind == "first" else 3):
        dist.all_reduce(data)
        dist.all_reduce(data, group=other)
    torch.cuda.synchronize()
    open(f"{folder}/ready.{rank}", "w").close()
    first = rank == 0
    if kind in ("absent", "first") and not first or kind == "ended":
        time.sleep(600)
    if kind == "cpu" and not first:
        while True:
            sum(range(1000))
    if kind == "other" and not first:
        dist.all_gather_into_tensor(torch.empty(2 << 20, device="cuda"), data)
    elif kind == "receive":
        if first:
            dist.recv(data, 1)
        time.sleep(600)
    elif kind == "busy":
        large = torch.ones(1 << 28, device="cuda")
        while True:
            dist.all_reduce(large)
            torch.cuda.synchronize()
    else:
        if kind == "compute" and not first:
            matrix = torch.randn(16384, 16384, device="cuda")
            for _ in range(200):
                matrix = (matrix @ matrix).clamp(-1, 1)
        if kind == "gone" and not first:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(data)
    torch.cuda.synchronize()
    time.sleep(600)


def run(program, kind):
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", kind, str(rank), folder],
                stderr=open(f"{folder}/{rank}.err", "w"),
                env={**os.environ, "NCCL_HOSTID": f"rank{rank}"} if os.environ.get("SHARE_GPU") else None,
            )
            for rank in range(2)
        ]
        try:
            until = time.time() + 90
            while not all(os.path.exists(f"{folder}/ready.{rank}") for rank in range(2)):
                if time.time() > until:
                    return f"{kind}: it did not start: {open(f'{folder}/0.err').read()[-2000:]}"
                time.sleep(0.1)
            time.sleep(5)
            pids = ",".join(str(rank.pid) for rank in ranks)
            began = time.time()
            dump = subprocess.run([program, "dump", "--json", "-p", pids], capture_output=True, text=True)
            took = time.time() - began
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    report = json.loads(dump.stdout)
    print(f"{kind}: exit code {dump.returncode}, {took:.1f} s: {(report['job'] or {}).get('sentence')}")
    for gpu in report["gpus"]:
        keys = ("busId", "smPercent", "memoryPercent", "nvlink", "pcie", "powerWatts", "temperature", "processes")
        print("   ", {key: gpu[key] for key in keys})
    scans = [(process["scan"] or {}).get("milliseconds") for process in report["processes"]]
    print("    scans", scans, report.get("gpuRemarks", ""))
    found = []
    for communicator in report["communicators"]:
        verdict = communicator["verdict"]
        print("   ", verdict["state"], verdict["kind"], verdict["culprits"])
        print("\n".join("        " + sentence for sentence in verdict["evidence"]))
        if verdict["state"] != "healthy":
            found.append((verdict["state"], verdict["kind"], verdict["culprits"]))
    # Where only the GPUs tell, they do not tell which communicator they wait for.
    found = found[:1] if all(one == found[0] for one in found) else found
    wanted = (EXPECTED_OVER_SOCKETS if os.environ.get("SHARE_GPU") else EXPECTED)[kind]
    expected = [] if wanted[0] == "healthy" else [wanted]
    return None if found == expected else f"{kind}: expected {expected}, found {found}"


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    wrong = [why for kind in (sys.argv[2:] or EXPECTED) if (why := run(sys.argv[1], kind))]
    print("\n".join(wrong) or "all kinds are told")
    sys.exit(bool(wrong))
