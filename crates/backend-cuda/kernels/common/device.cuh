// What kernels share on top of single instructions: conversions of stored numbers, sums over warps and blocks.
//
// Conventions of all kernels: a kernel takes one struct by value, `extern "C" __global__ void __launch_bounds__(THREADS)
// name(const __grid_constant__ Args a)`; blocks are one-dimensional, a multiple of 32 threads; dynamic shared memory is
// `extern __shared__ __align__(128) u8 memory[]`; sums that a row's result depends on run in an order that depends on the
// row alone, so that neither the batch nor the chunking shows in a bit.
#pragma once
#include "ptx.cuh"

__device__ __forceinline__ float float_of_bf16(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ float low_bf16(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high_bf16(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float float_of_e4m3(u8 v) { return float_of_f16((u16)f16x2_of_e4m3x2(v)); }
// 2^(e - 127) for a UE8M0 exponent. 0 (2^-127) becomes 0 and 255 (not a number) infinity.
__device__ __forceinline__ float float_of_ue8m0(u32 e) { return __uint_as_float(e << 23); }

// One arrival, of the first lane, for all that this warp read and wrote so far.
__device__ __forceinline__ void warp_arrive(u32 barrier, int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
}
