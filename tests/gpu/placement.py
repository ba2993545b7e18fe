"""Where the ranks of a job go, for the programs beside it: one to a GPU; with more ranks than GPUs several share one, and every so many
ranks as there are GPUs are a host of their own to NCCL, which refuses two ranks of one host on a GPU. Within such a host they talk
over NVLink, between hosts over sockets.
"""

import functools
import subprocess


@functools.cache
def gpus():
    """GPUs of this host, without a CUDA context of one's own."""
    said = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    return len(said.splitlines())


def is_shared(ranks):
    return ranks > gpus()


def gpu(rank):
    return rank % gpus()


def environment(rank, ranks):
    """Of that rank's process, besides what it has."""
    return {"NCCL_HOSTID": f"host{rank // gpus()}"} if is_shared(ranks) else {}
