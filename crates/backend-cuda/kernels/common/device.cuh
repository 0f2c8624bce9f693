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

// 2^(e - 127) exactly, also where the exponent is the smallest; 255 is NaN. `reciprocal` is 2^(127 - e).
__device__ __forceinline__ float scale_of_ue8m0(u32 e) { return __uint_as_float(e == 255 ? 0x7fc00000u : e ? e << 23 : 0x00400000u); }
__device__ __forceinline__ float reciprocal_of_ue8m0(u32 e) { return e == 255 ? scale_of_ue8m0(255) : scale_of_ue8m0(254 - e); }
__device__ __forceinline__ u32 ue8m0_at_least(float value) {
    const u32 bits = __float_as_uint(value);
    return min((bits >> 23) + ((bits & 0x7fffffu) != 0), 254u);
}
// The scale byte of a block whose largest magnitude is `most`, as the publisher's rounding has it.
__device__ __forceinline__ u32 scale_for_e4m3(float most) { return ue8m0_at_least(__fdiv_rn(fmaxf(most, 1e-4f), 448.f)); }
__device__ __forceinline__ u32 scale_for_e2m1(float most) { return ue8m0_at_least(__fdiv_rn(fmaxf(most, 6.f * 1.17549435e-38f), 6.f)); }
__device__ __forceinline__ float round_to_bf16(float x) { return low_bf16(bf16x2_of(x, 0.f)); }
__device__ __forceinline__ float round_to_e4m3(float x) { return float_of_e4m3((u8)e4m3x2_of(x, 0.f)); }
// The nearest E2M1 code, ties to the even one.
__device__ __forceinline__ u32 e2m1_of(float x) {
    const float m = fabsf(x);
    const u32 code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.f);
    return code | (__float_as_uint(x) >> 28 & 8);
}
__device__ __forceinline__ float float_of_e2m1(u32 code) {
    const u32 m = code & 7;
    const float x = m < 2 ? 0.5f * m : (1.f + 0.5f * (m & 1)) * (float)(1 << (m / 2 - 1));
    return code & 8 ? -x : x;
}
// Numbers in the order in which floats are compared: -0 before 0, NaN above all.
__device__ __forceinline__ u32 ordered_bits(float x) {
    const u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The sum of at(i) * x[i], in four sums of every fourth product each.
template <typename At> __device__ __forceinline__ float dot_of(int count, const float* x, At at) {
    float a = 0.f, b = 0.f, c = 0.f, d = 0.f;
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        a = fmaf(at(i), x[i], a);
        b = fmaf(at(i + 1), x[i + 1], b);
        c = fmaf(at(i + 2), x[i + 2], c);
        d = fmaf(at(i + 3), x[i + 3], d);
    }
    for (; i < count; i++) a = fmaf(at(i), x[i], a);
    return (a + b) + (c + d);
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int bit = 16; bit; bit /= 2) x += __shfl_xor_sync(~0u, x, bit);
    return x;
}
// For all threads of a block of THREADS; the order of additions is fixed. Calls must not follow each other without a
// barrier in between: `parts` is this call's own.
template <int THREADS> __device__ __forceinline__ float block_sum(float x, float (&parts)[THREADS / 32]) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float total = 0.f;
    for (int i = 0; i < THREADS / 32; i++) total += parts[i];
    return total;
}
