"""vLLM's own executor, whose workers do not answer.

usage: with_vllm.py (plugin | option) WORKERS-PIDS ENGINES
"""

import logging
import os
import sys
import time
from collections import deque
from types import SimpleNamespace

import stand_ins


class Queue:
    """Of vLLM's MessageQueue: takes all, and gives nothing in time."""

    def enqueue(self, call):
        pass

    def dequeue(self, timeout=None):
        time.sleep(timeout)
        raise TimeoutError


way, pids, engines = sys.argv[1:]
logging.basicConfig(stream=sys.stdout, format="%(message)s")
stand_ins.use("vllm", "torch", "cloudpickle")
stand_ins.module("vllm.envs", VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=0.2, VLLM_PLUGINS=None)
stand_ins.module("vllm.tracing", instrument=lambda **_: lambda function: function, maybe_init_worker_tracer=None)
# Imports a class by its full name, as vLLM's does.
by_name = lambda name: getattr(__import__(name.rpartition(".")[0]), name.rpartition(".")[2])
stand_ins.module("vllm.utils.import_utils", resolve_obj_by_qualname=by_name)
from vllm.v1.executor.abstract import Executor

backend = "mp"
if way == "plugin":
    stand_ins.installed()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
else:
    backend = "ncclflow_vllm.Executor"
parallel = SimpleNamespace(distributed_executor_backend=backend, data_parallel_size=int(engines))
chosen = Executor.get_class(SimpleNamespace(parallel_config=parallel))
from vllm.v1.executor.multiproc_executor import WorkerProc

# As after `_init_executor`, without processes.
executor = chosen.__new__(chosen)
executor.parallel_config, executor.is_failed, executor.output_rank = parallel, False, 0
executor.kv_output_aggregator = executor.ec_output_aggregator = None
executor.rpc_broadcast_mq, executor.response_mqs, executor.futures_queue = Queue(), [Queue(), Queue()], deque()
executor.workers = [SimpleNamespace(proc=SimpleNamespace(pid=int(pid))) for pid in pids.split(",")]
for non_block in [False, True]:
    try:
        answer = executor.execute_model(None, non_block=non_block)
        stand_ins.note("the call has returned")
        answer.result()
    except TimeoutError as error:
        stand_ins.note(f"the engine fails: {error}")
# One that answers is not asked about.
executor.response_mqs[0].dequeue = lambda timeout=None: (WorkerProc.ResponseStatus.SUCCESS, "tokens")
stand_ins.note(executor.execute_model(None, non_block=True).result())
