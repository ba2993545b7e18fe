"""NCCL and CUDA's driver by ctypes, for jobs without torch: a stream, memory, and a communicator of which each process is a rank."""

import array
import ctypes
import os
import sys
import time

FLOAT32, SUM, MAX = 7, 0, 2


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Library:
    """Calls functions that return 0, or ends the program."""

    def __init__(self, path):
        # Its own symbols before all others: there may be another libnccl in the process.
        self.functions = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)

    def __getattr__(self, name):
        function = getattr(self.functions, name)

        def call(*arguments):
            result = function(*arguments)
            if result != 0:
                sys.exit(f"{name} returned {result}")

        return call


class Gpu:
    def __init__(self, rank):
        # The only one that this process sees: then the driver's current device is also that of the runtime inside of libnccl.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        mine = visible.split(",")[rank] if visible else str(rank)
        os.environ["CUDA_VISIBLE_DEVICES"] = mine
        if visible and visible.split(",").count(mine) > 1:
            # NCCL refuses two ranks of one host on one GPU.
            os.environ["NCCL_HOSTID"] = f"host of rank {rank}"
        self.cuda = Library("libcuda.so.1")
        device, context, self.stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda.cuInit(0)
        self.cuda.cuDeviceGet(ctypes.byref(device), 0)
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.cuda.cuCtxSetCurrent(context)
        self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)

    def memory(self, elements):
        address = ctypes.c_uint64()
        self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * elements))
        return address.value

    def write(self, address, values):
        source, count = values.buffer_info()
        self.cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address), ctypes.c_void_p(source), ctypes.c_size_t(4 * count))

    def read(self, address, elements):
        values = array.array("f", bytes(4 * elements))
        target, _ = values.buffer_info()
        self.cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(4 * elements))
        return values

    def wait(self):
        self.cuda.cuStreamSynchronize(self.stream)


def communicator(nccl, rank, world, id_file):
    """This process' communicator. The first rank gives the others its id in `id_file`, which must not be there before."""
    unique, comm = UniqueId(), ctypes.c_void_p()
    if rank == 0:
        nccl.ncclGetUniqueId(ctypes.byref(unique))
        with open(id_file + ".new", "wb") as file:
            file.write(bytes(unique))
        os.rename(id_file + ".new", id_file)
    while not os.path.exists(id_file):
        time.sleep(0.02)
    with open(id_file, "rb") as file:
        unique = UniqueId.from_buffer_copy(file.read())
    nccl.ncclCommInitRank(ctypes.byref(comm), world, unique, rank)
    return comm
