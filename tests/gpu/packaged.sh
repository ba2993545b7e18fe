#!/usr/bin/env bash
# What is shipped, in the place of a build: doctor, a dump with what the GPUs do, a recording with rows of GPUs.
#
#   tests/gpu/packaged.sh NAME RANKS [NAME=VALUE …] -- FILE…
#
# FILE: a wheel, a .deb or the rescue program, of `cargo xtask dist`. Each is installed into a folder of its own. Needs root, GPUs, torch, pip and dpkg-deb.
# The rescue program loads no NVML: it must say so, and have what nvidia-smi says.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
. tests/gpu/job.sh
failed=0
fail() { echo "FAILED: $name: $*"; failed=1; }
trap kill_ranks EXIT

install_file() { # FILE FOLDER: sets `program`
    mkdir "$2"
    case $1 in
        *.whl) python3 -m pip install --quiet --no-index --no-deps --root-user-action ignore --target "$2" "$1"; program=$2/bin/ncclflow ;;
        *.deb) dpkg-deb --extract "$1" "$2"; program=$2/usr/bin/ncclflow ;;
        *) cp "$1" "$2/ncclflow"; program=$2/ncclflow ;;
    esac
}

number=0
for file in "$@"; do
    number=$((number + 1))
    install_file "$file" "$work/$number" || { fail "$file cannot be installed"; continue; }
    said=$("$program" --version) || { fail "$file does not start"; continue; }
    echo "== $file:" $said
    "$program" doctor >"$work/doctor.$number" 2>&1 || fail "doctor ended with $?"
    tail -n 1 "$work/doctor.$number"

    start_ranks "hang$number" $((29520 + number)) 200 workload.py --iters 6 --ops allreduce --elements 1048576 --absent $((ranks - 1))@3
    touch "$work/go"
    wait_for absent "hang$number" 1
    sleep 3
    "$program" dump -p "$(pids_of "hang$number")" >"$work/dump.$number" 2>&1; code=$?
    cat "$work/dump.$number"
    [ $code = 3 ] || fail "dump ended with $code"
    grep -q "rank $((ranks - 1)) has not joined" "$work/dump.$number" || fail "the dump does not name the rank"
    for bus in $(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | head -n "$ranks" | tr A-F a-f); do
        grep -Eq "^GPU .*${bus#0000}.*busy.* of [0-9]+ W" "$work/dump.$number" || fail "the dump has no line of the GPU $bus"
    done
    case $said in *"nvml: no"*) grep -q "this static build cannot" "$work/dump.$number" || fail "it does not say that it has no NVML" ;; esac
    kill_ranks

    start_ranks "busy$number" $((29540 + number)) 200 workload.py --iters 400 --ops allreduce,allgather --elements 4194304
    touch "$work/go"
    "$program" record --files-limit 1T -p "$(pids_of "busy$number")" -d 8 -o "$work/out.$number" --strict 2>"$work/record.$number"; code=$?
    [ $code = 0 ] || { fail "record ended with $code"; tail -n 5 "$work/record.$number"; }
    ops=$(cat "$work/out.$number"/*/proxy_flow_rank*.jsonl | wc -l) rows=$(wc -l <"$work/out.$number/gpus.jsonl")
    echo "$ops operations and channels, $rows rows of GPUs"
    [ "$ops" -gt 0 ] && [ "$rows" -gt 0 ] || fail "the recording has $ops operations and $rows rows of GPUs"
    kill_ranks
done
verdict $failed
