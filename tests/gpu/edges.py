"""Hangs at the edges of a process's or a communicator's life: torch ranks over NVLink with process groups for all, `tp` and `pp`,
and what `ncclflow dump` says of each.

    python3 tests/gpu/edges.py PATH/TO/ncclflow [KIND …]

Needs root, four GPUs (RANKS=2: two) and torch. Each kind is one rank's doing; the first line of the dump must name this rank's
process and no other, with the state and the kind that are expected. Prints PASSED or FAILED.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

RANKS = int(os.environ.get("RANKS", "4"))
# State and kind, and the rank that is waited for; None where all is well.
EXPECTED = {
    "init": ("stuck", "callNotMade", RANKS - 1),
    "new_group": ("stuck", "callNotMade", RANKS - 1),
    "window": ("stuck", "callNotMade", RANKS - 1),
    "spin": ("waiting", "otherKernel", 1),
    "absent": ("stuck", "notJoined", 1),
    "orphans": ("stuck", "gone", 1),
    "stopped": ("stuck", "stopped", 1),
    "frozen": ("stuck", "stopped", 1),
    "first_thread": ("stuck", "notJoined", 1),
    "busy": ("healthy", None, None),
    "busy_sends": ("healthy", None, None),
}


def rank_main(kind, rank, folder):
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    culprit = EXPECTED[kind][2]

    def ready():
        open(f"{folder}/ready.{rank}", "w").close()

    def elsewhere():
        ready()
        time.sleep(900)

    if kind == "init":
        ready()
        if rank == culprit:
            elsewhere()
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=device)
    half = RANKS // 2
    tp = [dist.new_group(list(range(first, first + half)), group_desc="tp") for first in (0, half)][rank // half]
    pp = [dist.new_group([first, first + half], group_desc="pp") for first in range(half)][rank % half]
    data = torch.ones(1 << 20, device="cuda")
    groups = [None, pp] if half == 1 else [None, tp, pp]

    def step():
        for group in groups:
            dist.all_reduce(data, group=group)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    if kind == "orphans" and rank == culprit:
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(900)
                os._exit(0)
    if kind not in ("busy", "busy_sends"):
        ready()
        time.sleep(2)
    if kind == "new_group":
        if rank == culprit:
            elsewhere()
        dist.new_group(list(range(RANKS)))
    elif kind == "window":
        backend = dist.group.WORLD._get_backend(device)
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            _kept = torch.ones(1 << 20, device="cuda")
        if rank == culprit:
            elsewhere()
        backend.register_mem_pool(pool, symm=True)
    elif kind == "spin":
        if rank == culprit:
            for _ in range(300):
                torch.cuda._sleep(1_000_000_000)
        step()
    elif kind == "absent":
        if rank == culprit:
            elsewhere()
        step()
    elif kind == "orphans":
        if rank == culprit:
            os.kill(os.getpid(), signal.SIGKILL)
        step()
    elif kind in ("stopped", "frozen"):
        while rank == culprit:
            time.sleep(1)
        step()
    elif kind == "first_thread":
        if rank == culprit:
            import ctypes

            threading.Thread(target=time.sleep, args=(900,), name="loader").start()
            # pthread_exit() of the first thread alone: the process lives on as a zombie with threads.
            ctypes.CDLL(None).syscall(60, 0)
        step()
    elif kind == "busy_sends":
        ready()
        there = (rank + half) % RANKS
        while True:
            ops = [dist.P2POp(dist.isend, data[:1024], there, group=pp), dist.P2POp(dist.irecv, data[1024:2048], there, group=pp)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
    elif kind == "busy":
        ready()
        while True:
            step()
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    time.sleep(900)


def freeze(pid, frozen):
    """Freezes a process by a cgroup of its own."""
    folder = "/sys/fs/cgroup/ncclflow-edges"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write(str(pid))
    with open(f"{folder}/cgroup.freeze", "w") as file:
        file.write("1" if frozen else "0")


def run(program, kind, port):
    state, wanted, culprit = EXPECTED[kind]
    with tempfile.TemporaryDirectory() as folder:
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
        shared |= {"TORCH_NCCL_ENABLE_MONITORING": "0"}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", kind, str(rank), folder],
                stderr=open(f"{folder}/{rank}.err", "w"),
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                start_new_session=True,
            )
            for rank in range(RANKS)
        ]
        pids = [rank.pid for rank in ranks]
        try:
            until = time.time() + 90
            while not all(os.path.exists(f"{folder}/ready.{rank}") for rank in range(RANKS)):
                if time.time() > until:
                    errors = [open(f"{folder}/{rank}.err").read()[-700:] for rank in range(RANKS)]
                    return [f"{kind}: it did not start: {errors}"]
                time.sleep(0.1)
            time.sleep(6)
            if kind == "stopped":
                os.kill(pids[culprit], signal.SIGSTOP)
                time.sleep(1)
            if kind == "frozen":
                try:
                    freeze(pids[culprit], True)
                except OSError as error:
                    print(f"SKIPPED: {kind}: no cgroup can be made here: {error}")
                    return []
                time.sleep(1)
            given = list(pids)
            if kind == "orphans":
                children = subprocess.run(["pgrep", "-s", str(pids[culprit])], capture_output=True, text=True).stdout
                given += [int(pid) for pid in children.split() if int(pid) not in given]
            given = ",".join(map(str, given))
            dumps = []
            for _ in range(int(os.environ.get("DUMPS", "20")) if state == "healthy" else 1):
                began = time.time()
                dump = subprocess.run([program, "dump", "--json", "-p", given], capture_output=True, text=True)
                dumps.append((dump, time.time() - began))
            text = subprocess.run([program, "dump", "-p", given], capture_output=True, text=True).stdout
            errors = [open(f"{folder}/{rank}.err").read()[-300:] for rank in range(RANKS)]
        finally:
            if kind == "frozen":
                try:
                    freeze(pids[culprit], False)
                except OSError:
                    pass
            for rank in ranks:
                for end in (lambda: os.killpg(rank.pid, signal.SIGKILL), rank.kill):
                    try:
                        end()
                    except ProcessLookupError:
                        pass
                rank.wait()
    wrong = []
    for dump, took in dumps:
        try:
            job = json.loads(dump.stdout)["job"] or {}
        except ValueError:
            wrong.append(f"{kind}: no report: {dump.stderr[-300:]}")
            continue
        sentence = job.get("sentence", "no communicator was found")
        named = {int(pid) for pid in re.findall(r"process (\d+)", sentence)}
        is_right = job.get("state") == state and (state == "healthy" or job.get("kind") == wanted)
        if culprit is not None:
            # A process that is gone is named by its number in its own namespace, which is ours here.
            is_right &= pids[culprit] in named and not named - {pids[culprit]}
        if not is_right:
            wrong.append(f"{kind}: exit code {dump.returncode}: {job.get('kind')}: {sentence}")
    print(f"{kind}: {'wrong' if wrong else 'right'}, {max(took for _, took in dumps):.1f} s")
    print("\n".join("    " + line for line in text.splitlines()[: 40 if wrong else 6]))
    if wrong:
        print("    standard error of the ranks:", errors)
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    kinds = sys.argv[2:] or EXPECTED
    wrong = [why for number, kind in enumerate(kinds) for why in run(sys.argv[1], kind, 29600 + number)]
    print("\n".join(wrong))
    print(f"FAILED: {len(wrong)} wrong" if wrong else f"PASSED: {len(kinds)} kinds")
    sys.exit(bool(wrong))
