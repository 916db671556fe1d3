"""Which backend carries a training's collectives. Imports no torch: the launcher asks, too."""


def choose_backend(wanted: str, gpu_each: bool) -> str:
    """"gloo" or "nccl": as wanted; for "auto" NCCL where every worker has a GPU of its own (``gpu_each``)."""
    if wanted != "auto":
        return wanted
    return "nccl" if gpu_each else "gloo"
