#!/usr/bin/env bash
# Python stacks of a recording's launches against those of NCCL's kernels in torch's own trace (Kineto) of the same run, as `ncclflow stacks` reads
# it: the same functions of the same files, each as often.
#
#   tests/gpu/kineto.sh NAME RANKS [NAME=VALUE …]
#
# Needs root, GPUs, torch, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug).
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh
start_ranks job 29565 200 stacks_job.py --entries "$work/entries" --trace "$work/trace" --iters 40
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of job)" -o "$work/out" --level flow --stacks --stack-depth 48 --strict 2>"$work/record.err" &
recorder=$!
wait_for_recording "$work/record.err"
touch "$work/go"
wait_for 'done' job
wait $recorder; recorded=$?
failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; tail -n 20 "$work/record.err"; failed=1; }
for rank in $(seq 0 $((ranks - 1))); do
    "$programs/ncclflow" stacks "$work/trace.$rank.json" --kernel-name 'ncclDevKernel_%' --stack-depth 200 --json >"$work/kernels.$rank" || failed=1
done
python3 - "$work" "$ranks" <<'P' || failed=1
import collections, glob, json, re, sys
work, ranks = sys.argv[1], int(sys.argv[2])
# Kineto shortens paths, and gives the line at which a function began to run: neither is compared.
PYTHON = re.compile(r"(.+)\(\d+\): (.+)")
stacks = {row["stack"]: row for path in glob.glob(f"{work}/out/**/stacks.jsonl", recursive=True) for row in map(json.loads, open(path))}
# `stacks TRACE` drops digits at the end of a name.
name = lambda text: re.sub(r"(_?\d+)+$", "", text.split(".")[-1])
failed = False
for rank in range(ranks):
    kernels = collections.Counter()
    for stack in json.load(open(f"{work}/kernels.{rank}"))["stacks"]:
        frames = filter(None, map(PYTHON.fullmatch, stack["frames"]))
        kernels[tuple((name(frame[2]), frame[1].split("/")[-1]) for frame in frames)] += stack["count"]
    launched = {}
    for path in glob.glob(f"{work}/out/*/proxy_flow_rank{rank}.jsonl"):
        for op in map(json.loads, open(path)):
            # A launch is one hit, whatever ops it has.
            launched[path, op["ts_ns"]] = stacks.get(op.get("stack"), {}).get("frames") or []
    launches = collections.Counter(
        tuple((name(frame["function"]), frame["file"].split("/")[-1]) for frame in frames) for frames in launched.values())
    print(f"rank {rank}: {kernels.total()} kernels of {len(kernels)} stacks, {launches.total()} launches of {len(launches)} stacks")
    if kernels != launches or kernels.total() < 100 or len(kernels) < 5:
        failed = True
        for what, more in (("kernels", kernels - launches), ("launches", launches - kernels)):
            for frames, count in more.most_common(4):
                print(f"  more {what}: {count} of {frames}")
sys.exit(failed)
P
verdict $failed
