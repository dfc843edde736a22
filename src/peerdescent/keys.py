"""Counter-based randomness: the key of a draw is a function of (seed, node, draw) alone.

So all engines, methods and configurations with one seed get the same samples, in whatever order
they ask.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.threefry import words


# Compiled, for callers outside of a compiled program, such as the engine `debug`; inlined inside
# one.
@partial(jax.jit, static_argnames="call", inline=True)
def node_keys(seed: jax.Array, nodes: jax.Array, draw: jax.Array, call: int = 0) -> jax.Array:
    """The keys of `nodes` (any shape) for draw number `draw`; `call` distinguishes several draws of one iteration.

    The first word of a Threefry key is a hash of seed and call, plus the node; the second is the
    draw. So keys are distinct for all nodes and draws of a run, and a draw needs no hash.
    """
    base = jax.random.key_data(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), call))[
        0
    ]
    first = base + nodes.astype(jnp.uint32)
    second = jnp.broadcast_to(jnp.asarray(draw).astype(jnp.uint32), first.shape)
    return jax.random.wrap_key_data(jnp.stack([first, second], axis=-1), impl="threefry2x32")


@partial(jax.jit, static_argnums=2, inline=True)
def below(key: jax.Array, size: jax.Array, batch: int) -> jax.Array:
    """`batch` integers (batch,), uniform below `size`, with replacement."""
    first, second = jax.random.key_data(key)
    return scaled(words(first, second, jnp.arange(batch, dtype=jnp.uint32)), size)


def scaled(bits: jax.Array, size: jax.Array) -> jax.Array:
    """Uniform integers below `size` from uniform 32-bit words: the high word of bits * size.

    The bias is below size / 2^32. Computed from 16-bit halves, since JAX may have 64-bit integers
    disabled.
    """
    size, half, low_half = size.astype(jnp.uint32), np.uint32(16), np.uint32(0xFFFF)
    high, low = bits >> half, bits & low_half
    size_high, size_low = size >> half, size & low_half
    middle = high * size_low + ((low * size_low) >> half)
    carry = low * size_high + (middle & low_half)
    return (high * size_high + (middle >> half) + (carry >> half)).astype(jnp.int32)
