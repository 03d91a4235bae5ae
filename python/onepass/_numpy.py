"""NumPy, imported by the first call that looks into it: importing it takes longer than all of onepass does.

`from . import _numpy as np` reads as usual; a name that has been asked for once costs what a module's name costs.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import numpy

    value = globals()[name] = getattr(numpy, name)
    return value
