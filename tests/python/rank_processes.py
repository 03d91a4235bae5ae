"""Jobs that several processes of a group do over gloo."""

import datetime
import multiprocessing
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist


def sentence(call):
    """The sentence of the error that a call raises."""
    try:
        call()
    except (ValueError, TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _work(rank, ranks, own, folder, job):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(own / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=300))
    found = job(rank, ranks, folder)
    if rank == 0:
        torch.save(found, own / "answer")
    dist.barrier()
    dist.destroy_process_group()


def spawned(job, ranks, folder):
    """The answer of rank 0 to a job of this number of processes. A server that has imported torch forks them."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["torch", "onepass.torch", "onepass.context_parallel"]
    )
    with tempfile.TemporaryDirectory(dir=folder) as name:
        given = ranks, pathlib.Path(name), folder, job
        torch.multiprocessing.start_processes(_work, given, nprocs=ranks, start_method="forkserver")
        return torch.load(pathlib.Path(name) / "answer", weights_only=False)
