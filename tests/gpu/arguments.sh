# shellcheck shell=bash disable=SC2034
# NAME RANKS [NAME=VALUE …] [-- OPTION …], for the scripts beside it, which source it without arguments of its own: it reads
# theirs. Sets `name`, `ranks` and `environment`, and leaves the options. `numbers` (set before): names of what stands between RANKS and
# NAME=VALUE; each is set, too.

name=$1 ranks=$2
shift 2
for number in ${numbers[@]+"${numbers[@]}"}; do printf -v "$number" %s "$1"; shift; done
environment=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do environment+=("$1"); shift; done
[ $# -gt 0 ] && shift
