"""The kernels that cases of context parallelism need on a GPU, compiled side by side.

A rank would compile them one after the other, and all ranks the same ones.
"""

import context_parallel_cases as cases
import rank_processes


def load(name):
    """Loads the kernels of a case, into the cache of all processes where they are not there yet."""
    layout, scheme, tensors, given, options = cases.cases(1)[name]
    tensors = *tensors, cases.of_rows(tensors[0], given)
    cases.sharded(layout, 0, *tensors, scheme=scheme, **options)
    cases.one_device(*tensors, **{key: x for key, x in options.items() if key != "head_groups"})
    return name


def load_all():
    """The names of the cases whose kernels are there now."""
    return rank_processes.side_by_side(load, list(cases.cases(1)))
