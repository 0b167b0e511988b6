"""Tasks of a sweep on a Ray cluster."""

from typing import Any, Final

from isotherm import _sweep
from isotherm._isotherm import Space, __version__, _Stop
from isotherm._needs import need
from isotherm._sweep import Computed, Task

# A worker or its machine may die so often under one task; then its rows say so.
_RETRIES: Final = 5
# Tasks that wait at the cluster, for each CPU: enough that none waits for us, few enough to be remembered.
_WAITING: Final = 2


def _work(task: Task, space: Space, bounds: bool, version: str) -> Any:
    """On the cluster."""
    if version != __version__:
        raise RuntimeError(f"this worker has isotherm {__version__}, who asks has {version}; install the same")
    return _sweep.work(task, space, bounds, _Stop())


def on_ray(tasks: list[Task], space: Space, bounds: bool, jobs: int | None, address: str) -> Computed:
    """Does tasks on a cluster, `jobs` at a time, and yields each with its table as it is done."""
    ray = need("ray", "ray")
    is_ours = not ray.is_initialized()
    if is_ours:
        options = {"include_dashboard": False, "num_cpus": jobs} if address == "local" else {}
        ray.init(address=address, log_to_driver=False, **options)
    running: dict[Any, Task] = {}
    try:
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_work)
        of_all = ray.put(space)
        most = jobs or _WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting = list(reversed(tasks))
        while waiting or running:
            while waiting and len(running) < most:
                task = waiting.pop()
                running[remote.remote(task, of_all, bounds, __version__)] = task
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                task = running.pop(reference)
                yield task, _result(ray, reference, task, space)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if is_ours:
            ray.shutdown()


def _result(ray: Any, reference: Any, task: Task, space: Space) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(f"a task of {task.trace} has failed on the cluster: {error.cause}") from error
    except ray.exceptions.RayError as error:
        return _sweep.failed(task, space, f"its worker died {_RETRIES + 1} times: {type(error).__name__}")
