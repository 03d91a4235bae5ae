"""Jobs that several processes of a group do over gloo; with ONEPASS_RANKS=cuda over NCCL, each on a GPU of its own."""

import concurrent.futures
import datetime
import multiprocessing
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist

ON_GPUS = os.environ.get("ONEPASS_RANKS") == "cuda"


def device():
    """Where the tensors of this process lie."""
    return torch.device("cuda", torch.cuda.current_device()) if ON_GPUS else torch.device("cpu")


def those_that_fit(ranks):
    """The numbers of ranks that have a GPU each; on the CPU all of them."""
    return tuple(r for r in ranks if r <= torch.cuda.device_count()) if ON_GPUS else ranks


def sentence(call):
    """The sentence of the error that a call raises."""
    try:
        call()
    except (ValueError, TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def gathered(mine):
    """Every rank's values, on rank 0; None on the others."""
    by_rank = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, by_rank)
    return by_rank


def all_gathered(mine):
    """Every rank's values, on all of them."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def _work(rank, ranks, own, folder, job):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if ON_GPUS:
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(own / "store"), ranks)
    backend, limit = "nccl" if ON_GPUS else "gloo", datetime.timedelta(seconds=300)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)
    found = job(rank, ranks, folder)
    if rank == 0:
        torch.save(found, own / "answer")
    dist.barrier()
    dist.destroy_process_group()


def _server():
    """Forks processes that have imported torch already."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch", "onepass.torch", "onepass.context_parallel"])
    return server


def side_by_side(work, items):
    """work(item) of each, in a process for each core, but at most 16, which all use the first GPU."""
    with concurrent.futures.ProcessPoolExecutor(min(16, os.cpu_count() or 1), _server()) as pool:
        return list(pool.map(work, items))


def spawned(job, ranks, folder):
    """The answer of rank 0 to a job of this number of processes."""
    _server()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        given = ranks, pathlib.Path(name), folder, job
        torch.multiprocessing.start_processes(_work, given, nprocs=ranks, start_method="forkserver")
        return torch.load(pathlib.Path(name) / "answer", weights_only=False)
