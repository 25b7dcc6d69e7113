"""CUDA kernel that samples random numbers, for Numba's GPU simulator."""

from numba import cuda

from llmrl.envs.native import compilation

plain = compilation.build_plain_functions()


@cuda.jit
def drawn(keys, numbers):
    """Fill `numbers` [n_games, n] with samples of all purposes, in the order of `test_native_loops.drawn`."""
    b = cuda.grid(1)
    if b < numbers.shape[0]:
        words = plain.hash_step(keys, b, 40 + b)
        for k in range(numbers.shape[1]):
            numbers[b, k] = plain.sample_integer(words, k % 8, k)
