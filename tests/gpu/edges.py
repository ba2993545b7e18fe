"""Hangs of torch ranks over NVLink with process groups for all, `tp` and `pp`, and what `ncclflow dump` says of each.

    python3 tests/gpu/edges.py PATH/TO/ncclflow [KIND …]

Needs root, GPUs (RANKS, default 4; with fewer GPUs ranks share one; RANKS=2 without what `tp` needs) and torch. Each kind is one rank's doing, or two ranks'; the first
line of the dump must name their processes and no other, with the state and the kind that are expected. TIMES (default 1) runs of
each kind. Prints PASSED or FAILED.
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
from concurrent.futures import ThreadPoolExecutor

import placement

RANKS = int(os.environ.get("RANKS", "4"))
LAST = RANKS - 1
# Dumps of a job that is well.
DUMPS = int(os.environ.get("DUMPS", "20"))
# Who is in process group `pp` with rank 1.
ACROSS = (1 + RANKS // 2) % RANKS
# State, kinds, and the ranks that are waited for; none where all is well, and in a circle.
EXPECTED = {
    # Calls that all must make.
    "init": ("stuck", ["callNotMade"], [LAST]),
    "new_group": ("stuck", ["callNotMade"], [LAST]),
    "split": ("stuck", ["callNotMade"], [LAST]),
    "window": ("stuck", ["callNotMade"], [LAST]),
    # A process.
    "exit": ("stuck", ["gone"], [1]),
    "kill": ("stuck", ["gone"], [LAST]),
    "core": ("stuck", ["dying"], [1]),
    "orphans": ("stuck", ["gone"], [1]),
    "stopped": ("stuck", ["stopped"], [1]),
    "frozen": ("stuck", ["stopped"], [1]),
    "first_thread": ("stuck", ["notJoined"], [1]),
    # A program.
    "absent": ("stuck", ["notJoined"], [1]),
    "loader": ("stuck", ["notJoined"], [LAST]),
    "skipped": ("stuck", ["notJoined"], [1]),
    "barrier": ("stuck", ["otherOperation"], [LAST]),
    "dtype": ("stuck", ["otherOperation"], [LAST]),
    "size": ("stuck", ["otherOperation"], [LAST]),
    "receives": ("stuck", ["noCounterpart"], [1, ACROSS]),
    "receive": ("stuck", ["noCounterpart"], [ACROSS]),
    "orders": ("stuck", None, []),
    "destroy": ("stuck", None, [1]),
    # It goes on elsewhere.
    "spin": ("waiting", ["otherKernel"], [1]),
    "checkpoint": ("waiting", ["notJoined"], [0]),
    "compilation": ("waiting", ["notJoined"], [1]),
    "evaluation": ("waiting", ["computing", "notJoined"], [0]),
    "busy": ("healthy", None, []),
    "busy_sends": ("healthy", None, []),
    # While rank 0 writes a checkpoint, the others wait for it.
    "training": ("healthy", None, []),
}
# Those that need a group of some ranks only: of two ranks `world` and `pp` have the same, and torch's notes of sends cannot be told
# apart; nor does a GPU of two wait for ever for an operation of another type.
OF_FOUR = ["skipped", "orders", "training", "receives", "dtype"]
# Rank 1 is in the barrier, and not in the operation of `pp` that rank 0 has called meanwhile.
if placement.is_shared(RANKS):
    # Connections over sockets break where a process is gone.
    for kind in ("exit", "kill", "orphans"):
        EXPECTED[kind] = ("stuck", ["gone", "failed"], EXPECTED[kind][2])
    # Over sockets operations of other sizes end.
    for kind in ("dtype", "size"):
        del EXPECTED[kind]
    # What runs on a GPU that several have is not told apart.
    EXPECTED["spin"] = ("waiting", ["otherKernel", "noProgress"], [1])
if RANKS == 2:
    EXPECTED["barrier"] = ("stuck", ["otherOperation", "notJoined"], [LAST])


def rank_main(kind, rank, folder):
    import torch
    import torch.distributed as dist

    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    device = torch.device("cuda", placement.gpu(rank))
    torch.cuda.set_device(device)
    culprits = EXPECTED[kind][2]
    is_culprit = rank in culprits

    def ready():
        open(f"{folder}/ready.{rank}", "w").close()

    def elsewhere():
        ready()
        time.sleep(900)

    if kind == "init":
        ready()
        if is_culprit:
            elsewhere()
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=device)
    half = RANKS // 2
    tp = [dist.new_group(list(range(first, first + half)), group_desc="tp") for first in (0, half)][rank // half]
    pp = [dist.new_group([first, first + half], group_desc="pp") for first in range(half)][rank % half]
    across = (rank + half) % RANKS
    data = torch.ones(1 << 20, device="cuda")
    groups = [None, pp] if half == 1 else [None, tp, pp]

    def step(groups=groups):
        for group in groups:
            dist.all_reduce(data, group=group)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    if kind == "orphans" and is_culprit:
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(900)
                os._exit(0)
    if EXPECTED[kind][0] != "healthy":
        ready()
        time.sleep(2)
    if kind == "new_group":
        if is_culprit:
            elsewhere()
        dist.new_group(list(range(RANKS)))
    elif kind == "split":
        if is_culprit:
            elsewhere()
        dist.split_group(split_ranks=[list(range(half)), list(range(half, RANKS))])
    elif kind == "window":
        backend = dist.group.WORLD._get_backend(device)
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            _kept = torch.ones(1 << 20, device="cuda")
        if is_culprit:
            elsewhere()
        backend.register_mem_pool(pool, symm=True)
    elif kind == "spin":
        if is_culprit:
            for _ in range(300):
                torch.cuda._sleep(1_000_000_000)
        step()
    elif kind == "absent":
        if is_culprit:
            elsewhere()
        step()
    elif kind == "exit":
        if is_culprit:
            os._exit(0)
        step()
    elif kind in ("kill", "orphans"):
        if is_culprit:
            os.kill(os.getpid(), signal.SIGKILL)
        step()
    elif kind == "core":
        if is_culprit:
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            os.kill(os.getpid(), signal.SIGABRT)
        step()
    elif kind in ("stopped", "frozen"):
        while is_culprit:
            time.sleep(1)
        step()
    elif kind == "first_thread":
        if is_culprit:
            import ctypes

            threading.Thread(target=time.sleep, args=(900,), name="loader").start()
            # pthread_exit() of the first thread alone: the process lives on as a zombie with threads.
            ctypes.CDLL(None).syscall(60, 0)
        step()
    elif kind == "loader":
        if is_culprit:
            next_batch(threading.Lock())
        step()
    elif kind == "skipped":
        step([pp] if is_culprit else [tp, pp])
    elif kind == "barrier":
        dist.barrier() if is_culprit else step()
    elif kind == "dtype":
        dist.all_reduce(data.half() if is_culprit else data)
    elif kind == "size":
        dist.all_reduce(data[: 1 << 16] if is_culprit else data)
    elif kind == "receives":
        if is_culprit:
            dist.recv(data, across, group=pp)
        step()
    elif kind == "receive":
        if is_culprit:
            elsewhere()
        if rank == 1:
            dist.recv(data, across, group=pp)
    elif kind == "orders":
        for group in (None, tp) if rank == LAST else (tp, None):
            step([group])
            torch.cuda.synchronize()
    elif kind == "destroy":
        if is_culprit:
            dist.destroy_process_group()
        step()
    elif kind == "checkpoint":
        if is_culprit:
            with open(f"{folder}/checkpoint", "wb") as file:
                while True:
                    file.seek(0)
                    file.write(bytes(64 << 20))
                    os.fsync(file.fileno())
        step()
    elif kind == "compilation":
        while is_culprit:
            sum(range(1000))
        step()
    elif kind == "evaluation":
        if is_culprit:
            a = torch.randn(8192, 8192, device="cuda")
            while True:
                for _ in range(20):
                    torch.mm(a, a)
                torch.cuda.synchronize()
        step()
    elif kind == "busy_sends":
        ready()
        while True:
            ops = [dist.P2POp(dist.isend, data[:1024], across, group=pp), dist.P2POp(dist.irecv, data[1024:2048], across, group=pp)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
    elif kind == "busy":
        ready()
        while True:
            step()
            torch.cuda.synchronize()
    elif kind == "training":
        ready()
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        for iteration in range(1 << 30):
            if rank >= half:
                dist.recv(data, across, group=pp)
            for _ in range(4):
                for _ in range(4):
                    torch.mm(a, a)
                dist.all_reduce(data, group=tp)
            if rank < half:
                dist.send(data, across, group=pp)
            dist.all_reduce(data)
            if iteration % 200 == 199 and rank == 0:
                torch.save(torch.zeros(50 << 20), f"{folder}/checkpoint")
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    time.sleep(900)


def next_batch(lock):
    """A data loader whose lock its worker never gives back."""
    lock.acquire()
    lock.acquire()


def freeze(pid, frozen):
    """Freezes a process by a cgroup of its own."""
    folder = "/sys/fs/cgroup/ncclflow-edges"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write(str(pid))
    with open(f"{folder}/cgroup.freeze", "w") as file:
        file.write("1" if frozen else "0")


CORE_PATTERN = "/proc/sys/kernel/core_pattern"


class Job:
    """Ranks of one kind, which have loaded torch and wait for the word to go."""

    def __init__(self, kind, port):
        self.kind = kind
        self.files = tempfile.TemporaryDirectory()
        self.folder = self.files.name
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
        shared |= {"TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", kind, str(rank), self.folder],
                stderr=open(f"{self.folder}/{rank}.err", "w"),
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(placement.gpu(rank)), **placement.environment(rank, RANKS)},
                start_new_session=True,
            )
            for rank in range(RANKS)
        ]
        self.pids = [rank.pid for rank in self.ranks]

    def errors(self, length):
        return [open(f"{self.folder}/{rank}.err").read()[-length:] for rank in range(RANKS)]

    def end(self):
        for rank in self.ranks:
            for end in (lambda: os.killpg(rank.pid, signal.SIGKILL), rank.kill):
                try:
                    end()
                except ProcessLookupError:
                    pass
            rank.wait()
        self.files.cleanup()


def judge(kind, report, pids):
    """`right`, `cannot tell`, `other kind`, or `wrong culprit`."""
    state, kinds, culprits = EXPECTED[kind]
    job = report["job"] or {}
    sentence = job.get("sentence", "no communicator was found")
    named = {int(pid) for some in re.findall(r"process(?:es)? ((?:\d+(?:, )?)+)", sentence) for pid in some.split(", ") if pid}
    # A process that is gone is named by its number in its own namespace, which is ours here.
    wanted = {pids[rank] for rank in culprits}
    if kind == "size" and RANKS == 2:
        # Nothing says which of two is wrong.
        wanted = set(pids)
    if kind == "training" and job.get("state") == "waiting" and named == {pids[0]}:
        return "right", job
    if culprits and named - wanted or state == "healthy" and job.get("state") != "healthy":
        return "wrong culprit" if job.get("state") in ("stuck", "waiting") else "cannot tell", job
    if job.get("state") in ("unknown", None) or named != wanted and culprits:
        return "cannot tell", job
    is_kind = job.get("state") == state and (kinds is None or job.get("kind") in kinds)
    return "right" if is_kind else "other kind", job


def run(program, job, prepare_next):
    kind, pids = job.kind, job.pids
    state, _, culprits = EXPECTED[kind]
    pattern = open(CORE_PATTERN).read()
    try:
        if kind == "core":
            # The kernel writes the core into a program that takes its time, as over a network.
            with open(CORE_PATTERN, "w") as file:
                file.write("|/bin/sleep 60")
        open(f"{job.folder}/go", "w").close()
        until = time.time() + 90
        while not all(os.path.exists(f"{job.folder}/ready.{rank}") for rank in range(RANKS)):
            if time.time() > until:
                prepare_next()
                print(f"{kind}: it did not start: {job.errors(700)}")
                return "did not start"
            time.sleep(0.1)
        time.sleep(5)
        if kind == "stopped":
            os.kill(pids[1], signal.SIGSTOP)
            time.sleep(1)
        if kind == "frozen":
            try:
                freeze(pids[1], True)
            except OSError as error:
                prepare_next()
                print(f"SKIPPED: {kind}: no cgroup can be made here: {error}")
                return "skipped"
            time.sleep(1)
        given = list(pids)
        if kind == "orphans":
            children = subprocess.run(["pgrep", "-s", str(pids[1])], capture_output=True, text=True).stdout
            given += [int(pid) for pid in children.split() if int(pid) not in given]
        given = ",".join(map(str, given))

        def take(_):
            began = time.time()
            dump = subprocess.run([program, "dump", "--json", "-p", given], capture_output=True, text=True)
            return dump, time.time() - began

        # The first one has the machine to itself.
        dumps = [take(None)]
        if state == "healthy":
            with ThreadPoolExecutor(8) as pool:
                others = list(pool.map(take, range(DUMPS - 1)))
            print(f"{kind}: {DUMPS} dumps, eight at once, at most {max((took for _, took in others), default=0):.1f} s")
        else:
            others = []
        # Loading torch takes processors, not GPUs.
        prepare_next()
        text = subprocess.run([program, "dump", "-p", given], capture_output=True, text=True).stdout
        errors = job.errors(300)
    finally:
        if kind == "core":
            with open(CORE_PATTERN, "w") as file:
                file.write(pattern)
            subprocess.run(["pkill", "-x", "sleep"])
        if kind == "frozen":
            try:
                freeze(pids[1], False)
            except OSError:
                pass
    outcomes = []
    for dump, _ in dumps + others:
        try:
            outcomes.append(judge(kind, json.loads(dump.stdout), pids))
        except ValueError:
            outcomes.append(("cannot tell", {"sentence": dump.stderr[-300:]}))
    order = ["right", "other kind", "cannot tell", "wrong culprit"]
    outcome, said = max(outcomes, key=lambda one: order.index(one[0]))
    print(f"{kind}: {outcome}: {said.get('state')} {said.get('kind')}, {max(took for _, took in dumps):.1f} s")
    print("\n".join("    " + line for line in text.splitlines()[: 6 if outcome == "right" else 40]), flush=True)
    if outcome != "right":
        print("    ranks", pids, "said", errors, flush=True)
    return outcome


def main():
    program = os.path.abspath(sys.argv[1])
    named = sys.argv[2:] or [kind for kind in EXPECTED if RANKS >= 4 or kind not in OF_FOUR]
    kinds = named * int(os.environ.get("TIMES", "1"))
    # The program that is looked at, and the one that loads torch meanwhile.
    jobs = [Job(kinds[0], 29600)]
    outcomes = []
    try:
        for number in range(len(kinds)):
            follows = kinds[number + 1 : number + 2]
            prepare = lambda: jobs.extend(Job(kind, 29601 + number) for kind in follows)
            outcomes.append((kinds[number], run(program, jobs[0], prepare)))
            jobs.pop(0).end()
    finally:
        for job in jobs:
            job.end()
    done = [outcome for _, outcome in outcomes if outcome != "skipped"]
    print({outcome: [kind for kind, one in outcomes if one == outcome] for outcome in set(done) - {"right"}})
    right, wrong = done.count("right"), done.count("wrong culprit")
    passed = right >= 0.97 * len(done) and not wrong
    print(f"{'PASSED' if passed else 'FAILED'}: edges.py: {right} of {len(done)} right, {wrong} wrong culprits")
    sys.exit(not passed)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    main()
