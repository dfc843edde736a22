"""Randomness by counting: the key of a draw is a function of (seed, node, draw) and of nothing else.

So every engine, method and configuration that uses one seed sees the same samples, whichever order it asks in.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def node_keys(seed: jax.Array, nodes: jax.Array, draw: jax.Array, call: int = 0) -> jax.Array:
    """The keys of `nodes` (any shape) for draw number `draw`; `call` tells several draws of one iteration apart.

    The two words of a Threefry key are (a hash of seed and call, plus the node) and the draw: distinct for every node
    and draw of a run, with no hashing per draw.
    """
    base = jax.random.key_data(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), call))[0]
    first = base + nodes.astype(jnp.uint32)
    second = jnp.broadcast_to(jnp.asarray(draw).astype(jnp.uint32), first.shape)
    return jax.random.wrap_key_data(jnp.stack([first, second], axis=-1), impl="threefry2x32")


def below(key: jax.Array, size: jax.Array, batch: int) -> jax.Array:
    """`batch` integers (batch,), uniform below `size`, with replacement: the high word of bits * size.

    The bias is below size / 2^32. Written with 16-bit halves, since 64-bit integers need not be enabled.
    """
    bits = jax.random.bits(key, (batch,), jnp.uint32)
    size = size.astype(jnp.uint32)
    high, low = bits >> 16, bits & 0xFFFF
    size_high, size_low = size >> 16, size & 0xFFFF
    middle = high * size_low + ((low * size_low) >> 16)
    carry = low * size_high + (middle & 0xFFFF)
    return (high * size_high + (middle >> 16) + (carry >> 16)).astype(jnp.int32)
