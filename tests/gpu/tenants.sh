#!/usr/bin/env bash
# Under one `record --all`, torch jobs follow each other whose NCCL is a file of its own: between them the file is first replaced, and then
# rewritten in place by other content. Each job must end with the losses of a job that nobody traced, and each is recorded.
#
#   tests/gpu/tenants.sh NAME RANKS ITERATIONS [NAME=VALUE …]
#
# Needs root, GPUs, torch, binutils' strip, and ncclflow in $NCCLFLOW_PROGRAMS (default target/release).
set -uo pipefail
cd "$(dirname "$0")/../.."
numbers=(iterations)
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
. tests/gpu/job.sh
nccl=$(python3 -c 'import glob, os, torch
folder = os.path.dirname(os.path.dirname(torch.__file__))
print((glob.glob(f"{folder}/nvidia/*/lib/libnccl.so.2") + glob.glob("/usr/lib/x86_64-linux-gnu/libnccl.so.2"))[0])')
mkdir "$work/lib"
library="$work/lib/libnccl.so.2"
cp "$nccl" "$library"
# Other content that does the same: another size, and nothing of the old file's end.
strip --strip-unneeded -o "$work/stripped" "$nccl" || cp "$nccl" "$work/stripped"
head -c 4096 /dev/zero >>"$work/stripped"
environment+=("LD_PRELOAD=$library")
train() { start_ranks "$1" 29545 200 ddp.py --iters "$iterations"; touch "$work/go"; wait_for seconds "$1"; wait "${job_processes[@]}"; job_processes=(); }

train alone
"$programs/ncclflow" record --files-limit 1T --all -o "$work/out" 2>"$work/record.err" &
recorder=$!
wait_for_recording "$work/record.err"
train first
cp "$work/stripped" "$work/lib/new"; mv "$work/lib/new" "$library"
train replaced
cat "$nccl" >"$library"
# A process that starts at the moment of the change can have mapped the old content: it is passed over, and named.
sleep 2
train rewritten
kill -INT $recorder; wait $recorder; recorded=$?
failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; tail -n 8 "$work/record.err"; failed=1; }
for mode in first replaced rewritten; do
    [ -n "$(said 'done' alone)" ] && [ "$(said 'done' alone)" = "$(said 'done' $mode)" ] || { echo "the losses of \`$mode\` differ"; failed=1; }
done
said 'done' alone
python3 - "$work/out" "$(pids_of first)" "$(pids_of replaced)" "$(pids_of rewritten)" <<'P' || failed=1
import json, sys
session = json.load(open(f"{sys.argv[1]}/session.json"))
by_pid = {target["pid"]: target for target in session["targets"]}
wrong, libraries = [], []
for pids in sys.argv[2:]:
    for pid in map(int, pids.split(",")):
        target = by_pid.get(pid)
        if not target:
            wrong.append(f"process {pid} was not recorded")
        else:
            libraries.append(target["libraries"])
print("libraries of the three jobs:", libraries)
changed = session.get("changed_libraries") or []
print("changed libraries:", changed)
if not changed:
    wrong.append("nobody was told that the library was rewritten in place")
print("passed over:", session.get("passed_over"))
ranks = {(one["commHash"], one["rank"]) for one in session["communicators"]}
if len(ranks) < 3 * len(sys.argv[2].split(",")):
    wrong.append(f"ranks {sorted(ranks)}")
if wrong:
    print(json.dumps({key: session.get(key) for key in ("errors", "libraries", "targets")})[:4000])
print("\n".join(wrong))
sys.exit(bool(wrong))
P
[ $failed = 0 ] || tail -n 15 "$work/record.err"
verdict $failed
