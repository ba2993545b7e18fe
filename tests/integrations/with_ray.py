"""Ray Train's own worker group, with the callback that its own code makes of the variable, on two nodes.

usage: with_ray.py (failed | finished | hangs | aborted)
"""

import logging
import os
import sys
from types import SimpleNamespace

import stand_ins

how = sys.argv[1]
logging.basicConfig(stream=sys.stdout, format="%(message)s")


class Task:
    """Of ray: a function that is to run on a node, and its result."""

    def __init__(self, function, **options):
        self.function, self.its_options = function, options

    def options(self, **options):
        return Task(self.function, **options)

    def remote(self, *args):
        assert self.its_options["num_cpus"] == 0 and not self.its_options["scheduling_strategy"].soft
        node = self.its_options["scheduling_strategy"].node_id
        stand_ins.note(f"on {node}:")
        self.result = self.function(*args)
        return self


def wait(tasks, num_returns, timeout):
    # What runs on the last node takes too long.
    return tasks[:-1], tasks[-1:]


class NodeAffinitySchedulingStrategy:
    def __init__(self, node_id, soft):
        self.node_id, self.soft = node_id, soft


stand_ins.use("ray")
path = [str(stand_ins.HOOKS / "ray")]
stand_ins.module("ray", __path__=path, remote=Task, wait=wait, get=lambda task, timeout: task.result)
strategies = {"NodeAffinitySchedulingStrategy": NodeAffinitySchedulingStrategy}
stand_ins.module("ray.util.scheduling_strategies", **strategies)
from contextlib import ExitStack, contextmanager


@contextmanager
def invoke_context_managers(managers):
    with ExitStack() as stack:
        [stack.enter_context(manager()) for manager in managers]
        yield


stand_ins.module("ray.train.v2._internal.util", invoke_context_managers=invoke_context_managers)
stand_ins.module("ray.train.v2._internal.constants", RAY_TRAIN_CALLBACKS_ENV_VAR="RAY_TRAIN_CALLBACKS")
os.environ["RAY_TRAIN_CALLBACKS"] = "ncclflow_ray.AskFirst"
from ray.train.v2._internal.callbacks.env_callback import _initialize_env_callbacks
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group.poll import WorkerGroupPollStatus, WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup


class Torch(WorkerGroupCallback):
    """Ray's own callbacks come later."""

    def before_worker_group_shutdown(self, worker_group):
        stand_ins.note("process groups are ended")


def worker(node, pid):
    return SimpleNamespace(metadata=SimpleNamespace(node_id=node, node_ip=f"ip-of-{node}", pid=pid))


# As after `_start`, without processes.
group = WorkerGroup.__new__(WorkerGroup)
group._callbacks = [*_initialize_env_callbacks(), Torch()]
workers = [worker("a", 7), worker("b", 7), worker("a", 8), worker("b", 9)]
group._worker_group_state = SimpleNamespace(workers=workers, shutdown=lambda: stand_ins.note("workers are ended"))
group._world_rank_to_ongoing_poll, group._worker_group_context = {}, None
statuses = [WorkerStatus(running=how in ("hangs", "aborted")) for _ in workers]
if how == "failed":
    statuses[1].error = RuntimeError("NCCL")
group._latest_poll_status = WorkerGroupPollStatus(dict(enumerate(statuses)))
for callback in group._callbacks:
    callback.after_worker_group_start(group)
group.abort() if how == "aborted" else group.shutdown()
