"""A rank of a job on the bed, in a Python program that calls NCCL through ctypes."""

import ctypes
import os
import sys
import time


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def join(bed, nccl, nvml, folder, rank, ranks, options=()):
    """Makes this process a rank of a communicator. `bed`, `nccl` and `nvml` are paths of libraries, `options` more of the bed's own. All
    ranks have the same `folder`. Gives the bed, NCCL and the communicator."""
    bed, library = ctypes.CDLL(bed), nccl
    options = ["--library", library, "--nvml", nvml, "--ranks", str(ranks), "--channels", "1", *options]
    if bed.ncclflow_bed_prepare("\n".join(options).encode()) != 0:
        sys.exit("the bed did not come up")
    bed.ncclflow_bed_allocate.restype = ctypes.c_void_p
    bed.ncclflow_bed_allocate.argtypes = [ctypes.c_size_t]
    bed.ncclflow_bed_set_device(rank)
    nccl = ctypes.CDLL(library)
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] + [ctypes.c_int] * 2 + [ctypes.c_void_p] * 2
    nccl.ncclAllGather.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_int] + [ctypes.c_void_p] * 2
    comm = ctypes.c_void_p()
    assert nccl.ncclCommInitRank(ctypes.byref(comm), ranks, unique_id(nccl, folder, rank), rank) == 0
    bed.ncclflow_bed_register(comm)
    return bed, nccl, comm


def unique_id(nccl, folder, rank):
    """Rank 0 makes it, and the others wait for its file."""
    path = os.path.join(folder, "id")
    made = UniqueId()
    if rank == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(made)) == 0
        with open(path + ".new", "wb") as file:
            file.write(bytes(made))
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return UniqueId.from_buffer_copy(file.read())
