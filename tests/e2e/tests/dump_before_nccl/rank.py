"""A rank before it has a communicator: in calls that stand in for torch's, with their names and files.

    rank.py FOLDER init|build|barrier|serve|come|get|first_collective|elsewhere

FOLDER has the stand-in for torch's library.
"""

import ctypes
import os
import socket
import sys
import time

FOLDER, WHAT = sys.argv[1:]


def library(name, source, **names):
    """The functions of a file that lies among the installed packages, as far as its path tells."""
    functions = dict(names)
    exec(compile(source, f"{FOLDER}/site-packages/torch/{name}.py", "exec"), functions)
    return functions


def torch():
    return ctypes.CDLL(f"{FOLDER}/libtorch_cpu.so")


def elsewhere():
    time.sleep(1000)


# What the store waits in is no Python.
init_process_group = library(
    "distributed/distributed_c10d", "import os\ndef init_process_group():\n    os.read(0, 1)\n"
)["init_process_group"]
barrier = library(
    "distributed/distributed_c10d",
    "import os\n"
    "def init_process_group():\n"
    "    _store_based_barrier('0', 4)\n"
    "def _store_based_barrier(group_name, rendezvous_count):\n"
    "    store_key = f'store_based_barrier_key:{group_name}'\n"
    "    world_size, worker_count = rendezvous_count, 2 * rendezvous_count\n"
    "    last_worker_key = f'{store_key}:last_worker'\n"
    "    os.read(0, 1)\n",
)["init_process_group"]
wait = library(
    "utils/file_baton",
    "import os, time\ndef wait(lock):\n    while os.path.exists(lock):\n        time.sleep(0.1)\n",
)["wait"]
serve = library(
    "distributed/rendezvous",
    "def init_process_group(hostname, port):\n"
    "    _create_c10d_store(hostname, port, 0)\n"
    "def _create_c10d_store(hostname, port, rank):\n"
    "    torch.double_wait_for_workers()\n",
    torch=WHAT == "serve" and torch(),
)["init_process_group"]
all_reduce = library(
    "distributed/distributed_c10d",
    "def all_reduce(tensor):\n    torch.double_broadcast_id()\n",
    torch=WHAT == "first_collective" and torch(),
)["all_reduce"]


def load(store, epoch):
    key = f"weights/{epoch}"
    store.double_get()


def port():
    """The port of the store's rank, which it writes down once it listens."""
    while not os.path.exists(f"{FOLDER}/port"):
        time.sleep(0.01)
    with open(f"{FOLDER}/port") as file:
        return int(file.read())


accepted = []
if WHAT == "serve":
    listener = socket.create_server(("127.0.0.1", 0))
    with open(f"{FOLDER}/port.new", "w") as file:
        file.write(str(listener.getsockname()[1]))
    os.rename(f"{FOLDER}/port.new", f"{FOLDER}/port")
    for _ in range(2):
        accepted.append(listener.accept())
elif WHAT == "come":
    accepted.append(socket.create_connection(("127.0.0.1", port())))

print("ready", flush=True)
if WHAT == "build":
    wait(__file__)
elif WHAT == "serve":
    serve("127.0.0.1", port())
elif WHAT == "get":
    load(torch(), 3)
elif WHAT == "first_collective":
    all_reduce(None)
elif WHAT == "barrier":
    barrier()
elif WHAT == "init":
    init_process_group()
elsewhere()
