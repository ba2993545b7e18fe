#!/usr/bin/env bash
# Makes the README's picture of `top`: of a job that runs on the real NCCL with emulated GPUs, in which the GPU of one rank computes longer.
#
#   tests/pictures/top.sh FOLDER
#
# Needs root, tmux, and built ncclflow and ncclflow-bed in $NCCLFLOW_PROGRAMS (default target/debug), and the NCCL that `cargo xtask nccl
# fetch 2.27.5` puts into the cache. The picture is put into FOLDER/top.svg.
#
#   tests/pictures/top.sh docs/images
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
library=${NCCLFLOW_NCCL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ncclflow/nccl}/2.27.5-cu12/libnccl.so.2
work=$(mktemp -d)
screen="tmux -L ncclflow-picture"
trap 'kill $(jobs -p) 2>/dev/null; $screen kill-server 2>/dev/null; rm -rf "$work"' EXIT
mkdir -p "$folder"

echo "2 gpu 1500" >"$work/faults"
NCCLFLOW_BED_GIVES_WAY=1 "$programs/ncclflow-bed" --library "$library" --ranks 4 --mode processes --channels 1 \
    --ops allreduce,allgather --bytes 65536 --iters 1000000 --compute-ms 4 --sync-iterations \
    --faults "$work/faults" >"$work/said" &
for _ in $(seq 200); do grep -q '"pids"' "$work/said" && break; sleep 0.1; done
pids=$(python3 -c 'import json, sys; print(",".join(map(str, json.loads(open(sys.argv[1]).readline())["pids"])))' "$work/said")
$screen new-session -d -x 100 -y 20 "exec $programs/ncclflow top -p $pids --level steps 2>/dev/null"
# Who is waited for is judged over 10 s at least, after the first operation of all ranks.
sleep 25
$screen capture-pane -e -p >"$work/screen"
cargo xtask make picture --title "ncclflow top --level steps" -o "$folder/top.svg" <"$work/screen"
grep -q WAITED "$folder/top.svg"
