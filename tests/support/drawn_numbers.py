"""A kernel that draws, for the simulator of a GPU."""

from numba import cuda

from llmrl.envs.native import compilation

plain = compilation.plain_functions()


@cuda.jit
def drawn(keys, numbers):
    """Numbers [n_games, n] of every purpose, as `test_native_loops.drawn` has them."""
    b = cuda.grid(1)
    if b < numbers.shape[0]:
        words = plain.hash_step(keys, b, 40 + b)
        for k in range(numbers.shape[1]):
            numbers[b, k] = plain.sample_integer(words, k % 8, k)
