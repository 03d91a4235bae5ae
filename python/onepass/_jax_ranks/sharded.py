"""A call on a mesh: where its arrays lie, its scheme on each device, and its gradients."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from onepass._ranks.plan import Kind, plan_of

from .call import FACTORS, SIDE, Call
from .gather import Gather
from .mesh import Mesh
from .schemes import Ring, Ulysses

SCHEMES = {"gather": Gather, "ring": Ring, "ulysses": Ulysses}


def has_rows(x: Any) -> bool:
    """True of a bias or a mask that has rows, which are sharded."""
    return x.ndim == 4 and x.shape[2] != 1


@dataclasses.dataclass(frozen=True)
class Sharded:
    """All of a call but its arrays, which `names` names."""

    mesh: Any
    axis: Any  # a name, or a pair of them: nodes, and ranks within a node
    batch_axis: str | None
    kind: Kind
    call: Call
    scheme: str
    head_groups: int
    return_lse: bool
    return_max: Any
    names: tuple[str, ...]

    def _device(self) -> Any:
        layout: Any = self.kind.layout
        if self.scheme == "mesh":
            between, within = self.axis
            size = int(self.mesh.shape[within])
            return Mesh(plan_of(self.kind), self.call, within, layout.rows, between=between, within=size)
        more = {"head_groups": self.head_groups} if self.scheme == "gather" else {}
        return SCHEMES[self.scheme](plan_of(self.kind), self.call, self.axis, layout.rows, **more)

    def _over(self, f: Any, arrays: Any, results: Any) -> Any:
        """f on each device. arrays: (spec, array); results: specs."""
        given, found = tuple(spec for spec, _ in arrays), tuple(results)
        values = [x for _, x in arrays]
        if "Explicit" in str(getattr(self.mesh, "axis_types", "")):  # which older versions of JAX lack
            values = [jax.reshard(x, NamedSharding(self.mesh, spec)) for x, spec in zip(values, given)]
        return jax.shard_map(f, mesh=self.mesh, in_specs=given, out_specs=found, check_vma=False)(*values)

    @property
    def _rows(self) -> PartitionSpec:
        return PartitionSpec(self.batch_axis, None, self.axis)

    def _spec(self, name: str, x: Any) -> PartitionSpec:
        """The spec of an array beside q, k and v: whole on all devices, but for the batch and the rows of scores."""
        if name not in ("bias", "bool_mask", *FACTORS):
            return PartitionSpec()
        batch = self.batch_axis if x.ndim > 0 and x.shape[0] > 1 else None
        return (
            PartitionSpec(batch) if name in FACTORS else PartitionSpec(batch, None, self.axis if has_rows(x) else None)
        )

    def _arrays(self, values: Any) -> list[tuple[PartitionSpec, Any]]:
        specs = [self._rows] * 3 + [self._spec(name, x) for name, x in zip(self.names[3:], values[3:])]
        return list(zip(specs, values))

    def _side(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.names[3:], values))

    def forward(self, values: Any) -> Any:
        """(out, lse), and last the row maxima that are asked for."""

        def run(q: Any, k: Any, v: Any, *side: Any) -> Any:
            out, lse, most = self._device().forward(self._side(side), q, k, v)
            if self.return_max == "head":
                most = self._of_heads(most)
            return (out, lse) if most is None else (out, lse, most)

        of_max = (PartitionSpec() if self.return_max == "head" else self._rows,) if self.return_max else ()
        return self._over(run, self._arrays(values), (self._rows,) * 2 + of_max)

    def _of_heads(self, most: Any) -> Any:
        """[heads]: the largest over all devices, or NaN where one has it."""
        most = most.max((0, 2), initial=-jnp.inf)
        for axis in (self.axis, *(() if self.batch_axis is None else (self.batch_axis,))):
            most = jax.lax.all_gather(most, axis).max(0)
        return most

    def _total(self, device: Any, x: Any, spec: PartitionSpec) -> Any:
        """The sum of a gradient over the devices that it is not sharded over."""
        if self.axis not in spec:
            x = device.added(x)
        return x if self.batch_axis in (None, *spec) else jax.lax.psum(x, self.batch_axis)

    def backward(self, values: Any, out: Any, lse: Any, dout: Any, dlse: Any) -> Any:
        sums_of = {name: self._spec(name, x) for name, x in zip(self.names, values) if name in SIDE}

        def run(out: Any, lse: Any, dout: Any, *given: Any) -> Any:
            dlse, given = (given[0], given[1:]) if self.return_lse else (None, given)
            (q, k, v), side = given[:3], self._side(given[3:])
            device = self._device()
            sums, dk, dv = device.backward(side, dout, dlse, q, k, v, out, lse)
            grads = [x.astype(q.dtype) for x in (sums["dq"], dk, dv)]
            return (*grads, *(self._total(device, sums[f"d{name}"], spec) for name, spec in sums_of.items()))

        more = [(self._rows, x) for x in (out, lse, dout, *((dlse,) if self.return_lse else ()))]
        results = (self._rows,) * 3 + tuple(sums_of.values())
        found = iter(self._over(run, more + self._arrays(values), results))
        return tuple(next(found) if name in ("q", "k", "v", *SIDE) else None for name in self.names)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(sharded: Sharded, values: Any) -> Any:
    return sharded.forward(values)


def _forward(sharded: Sharded, values: Any) -> Any:
    if values[0].dtype == jnp.float8_e4m3fn:
        raise ValueError(
            "onepass.jax.context_parallel_attention does not support gradients of q, k and v in float8_e4m3fn"
        )
    found = sharded.forward(values)
    return found, (values, *found[:2])


def _backward(sharded: Sharded, kept: Any, upstream: Any) -> Any:
    return (sharded.backward(*kept, *upstream[:2]),)


attention.defvjp(_forward, _backward)
