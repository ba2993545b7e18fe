"""Jobs that somebody makes slow, over NVLink, and what `ncclflow check` says of a recording of each.

    python3 tests/gpu/slow.py PATH/TO/ncclflow [KIND …]

Needs root, torch and GPUs from Hopper on, one for each rank (RANKS, default 4; what has stages takes four). TIMES (default 1) runs of each kind. Before the
kinds a job without a fault shows what the chips differ by themselves. Prints what was said, the tracer's processor time, and
PASSED or FAILED.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

import placement

RANKS = int(os.environ.get("RANKS", "4"))
TIMES = int(os.environ.get("TIMES", "1"))
# Where recordings are kept.
KEPT = os.environ.get("KEPT")
SECONDS = int(os.environ.get("SECONDS_EACH", "8"))
# Elements of each of eight gradients. Over sockets a job should have small ones: else nothing but the network counts.
ELEMENTS = int(os.environ.get("ELEMENTS", str(8 << 20)))
# What is put in, and the kind and ranks that must be named.
KINDS = {
    "none": ("nobody", []),
    "async": ("nobody", []),
    "mm5": ("gpu", [RANKS - 2]),
    "mm10": ("gpu", [RANKS - 2]),
    "mm10async": ("gpu", [RANKS - 2]),
    "host": ("host", [RANKS - 2]),
    "gc": ("host", [1]),
    # Another process computes on the GPU of a rank.
    "competing": ("gpu", [RANKS - 2]),
    # A pipeline of two stages, each a `tp` group: nothing, one rank's GPU, a stage.
    "tppp": ("nobody", []),
    "tpppmm20": ("gpu", [RANKS - 1]),
    "stage": ("stage", list(range(RANKS // 2, RANKS))),
}
STAGES = ["tppp", "tpppmm20", "stage"]


def rank_main(kind, rank, folder):
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", placement.gpu(rank))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=device)
    size = 4096
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    grads = [torch.ones(ELEMENTS, device="cuda") for _ in range(8)]
    products = 20
    if kind.startswith("mm") and rank == RANKS - 2:
        products += products * int(kind.removeprefix("mm").removesuffix("async")) // 100
    if kind in STAGES:
        half = RANKS // 2
        tp = [dist.new_group(list(range(first, first + half))) for first in (0, half)][rank // half]
        peer = (rank + half) % RANKS
        pp = [dist.new_group([first, first + half]) for first in range(half)][rank % half]
        if kind == "stage" and rank >= half:
            products += products // 4
        if kind == "tpppmm20" and rank == RANKS - 1:
            products += products // 5
        activations = torch.ones(4 << 20, device="cuda", dtype=torch.bfloat16)
    with open(f"{folder}/ready.{rank}", "w"):
        pass
    iteration = 0
    steps = open(f"{folder}/steps.{rank}", "w", buffering=1)
    while not os.path.exists(f"{folder}/end"):
        iteration += 1
        if iteration % 20 == 0:
            steps.write(f"{time.time()}\n")
        if os.path.exists(f"{folder}/elsewhere.{rank}"):
            time.sleep(0.1)
            continue
        if kind == "host" and rank == RANKS - 2:
            time.sleep(0.001)
        if kind == "gc" and rank == 1 and iteration % 10 == 0:
            time.sleep(0.02)
        if kind in STAGES:
            if rank >= half:
                dist.recv(activations, peer, group=pp)
            for _ in range(4):
                for _ in range(products // 4):
                    torch.mm(a, b)
                dist.all_reduce(activations, group=tp)
            if rank < half:
                dist.send(activations, peer, group=pp)
            dist.all_reduce(grads[0][:1024])
        else:
            for _ in range(products):
                torch.mm(a, b)
            for grad in grads:
                dist.all_reduce(grad)
        if not kind.endswith("async"):
            torch.cuda.synchronize()
        elif iteration % 1000 == 0:
            # All stop in the same iteration.
            torch.cuda.synchronize()
    os._exit(0)


def compete(gpu):
    """Computes on a GPU for half of the time."""
    import torch

    a = torch.randn(2048, 2048, device=f"cuda:{gpu}", dtype=torch.bfloat16)
    while True:
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()
        time.sleep(0.001)


def run(program, kind):
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29541")
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", kind, str(rank), folder],
                env={**environment, **placement.environment(rank, RANKS)},
            )
            for rank in range(RANKS)
        ]
        others = []
        try:
            deadline = time.time() + 90
            while not all(os.path.exists(f"{folder}/ready.{rank}") for rank in range(RANKS)):
                if time.time() > deadline or any(rank.poll() is not None for rank in ranks):
                    return f"{kind}: the job did not start"
                time.sleep(0.1)
            if kind == "competing":
                others.append(subprocess.Popen([sys.executable, __file__, "--compete", str(RANKS - 2)]))
                time.sleep(10)
            time.sleep(3)
            pids = ",".join(str(rank.pid) for rank in ranks)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            recorded = subprocess.run(
                [program, "record", "-p", pids, "-o", f"{folder}/out", "-d", str(SECONDS), "--files", "none"],
                capture_output=True, text=True, timeout=120,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        finally:
            for process in ranks + others:
                process.kill()
            for process in ranks + others:
                process.wait()
        if recorded.returncode:
            return f"{kind}: record ended with {recorded.returncode}: {recorded.stderr}"
        checked = subprocess.run([program, "check", f"{folder}/out", "--json"], capture_output=True, text=True)
        if not checked.stdout:
            return f"{kind}: check said nothing: {checked.stderr}"
        slow = json.loads(checked.stdout)["slow"]
        text = subprocess.run([program, "check", f"{folder}/out"], capture_output=True, text=True)
        if KEPT:
            shutil.copytree(f"{folder}/out", f"{KEPT}/{kind}.{os.getpid()}.{pids.split(',')[0]}")
    print(f"{kind}: record took {used:.2f} s of processor time in {SECONDS} s; an iteration {slow.get('iterationMs')} ms")
    print("   ", json.dumps({key: slow.get(key) for key in ("kind", "ranks", "costMs", "percent", "everyIterations", "confidence", "notSeen")}))
    print("   ", (text.stderr + text.stdout).strip()[:1500].replace("\n", "\n    "), flush=True)
    expected = KINDS[kind]
    accused = [cause for cause in slow.get("others", []) if not cause.get("isNote") and cause["ranks"]]
    if accused:
        return f"{kind}: also {[(cause['kind'], cause['ranks']) for cause in accused]} are accused"
    if (slow["kind"], slow["ranks"]) != expected:
        return f"{kind}: {slow['kind']} {slow['ranks']} instead of {expected[0]} {expected[1]}"
    return None


def main():
    program = os.path.abspath(sys.argv[1])
    kinds = sys.argv[2:] or [kind for kind in KINDS if kind not in STAGES or RANKS >= 4]
    wrong = [problem for _ in range(TIMES) for kind in kinds if (problem := run(program, kind))]
    for problem in wrong:
        print("wrong:", problem)
    print(f"{'FAILED' if wrong else 'PASSED'}: slow.py: {len(kinds) * TIMES - len(wrong)} of {len(kinds) * TIMES}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    if sys.argv[1] == "--compete":
        compete(int(sys.argv[2]))
    main()
