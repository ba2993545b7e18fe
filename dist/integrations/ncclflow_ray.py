"""Ray Train (v2) asks ncclflow on all nodes before it ends workers that have not finished.

    RAY_TRAIN_CALLBACKS=ncclflow_ray.AskFirst python train.py      with this folder's files in the job's working_dir

So it comes before Ray's own callbacks, which end process groups; in `RunConfig(callbacks=…)` it comes after them. Ray
ends workers when one has failed, when its detector (`RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR=1
RAY_TRAIN_NCCL_RAS_ACTION=fail`) says that they hang, when it resizes their group, and when the run is aborted (Ctrl-C).

Checked with Ray 2.60.0, in ray/train/v2/_internal: `WorkerGroup.shutdown` and `.abort` (execution/worker_group/
worker_group.py), `_initialize_env_callbacks` (callbacks/env_callback.py).
"""

import logging
import time

import ray
from ncclflow_dump import dump, kept_in, limit, of_all, tell
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger("ray.train." + __name__)


class AskFirst(WorkerGroupCallback):
    def after_worker_group_start(self, worker_group):
        self.worker_group = worker_group

    def before_worker_group_shutdown(self, worker_group):
        try:
            status = worker_group.get_latest_poll_status()
            if not (status and status.finished and not status.errors):
                ask_nodes(worker_group.get_workers(), limit())
        except Exception as error:
            logger.error("ncclflow was not asked: %s", error)

    def before_worker_group_abort(self, worker_group_context):
        self.before_worker_group_shutdown(getattr(self, "worker_group", None))


def ask_nodes(workers, seconds):
    pids, tasks, end = {}, {}, time.monotonic() + seconds
    for worker in workers:
        pids.setdefault((worker.metadata.node_id, worker.metadata.node_ip), []).append(worker.metadata.pid)
    for node, its in pids.items():
        # A task of its own: the workers may answer no more.
        there = NodeAffinitySchedulingStrategy(node[0], soft=False)
        task = ray.remote(dump).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        tasks[task.remote(its, 0.6 * seconds, kept_in())] = node
    done, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=0.7 * seconds)
    answers = dict.fromkeys(late, (None, None))
    for task in done:
        try:
            answers[task] = ray.get(task, timeout=max(0, end - time.monotonic()))
        except Exception:  # The node has gone, or has no such file.
            answers[task] = None, None
    for task, (code, report) in answers.items():
        tell(logger, code, report, f"ncclflow on {tasks[task][1]}")
    if len(tasks) > 1:
        reports = {tasks[task][0]: report for task, (_, report) in answers.items()}
        tell(logger, *of_all(reports, end - time.monotonic()), "ncclflow of all nodes")
