// Activations as matrices take them (args.cuh): codes for FP8 and FP4, floats for the others. A thread has 8 columns, 16 threads a
// block of 128.
#include "args.cuh"

constexpr int THREADS = 256;

// Codes, even columns first, of numbers whose block's largest magnitude is `most`; the power of two that they are to be multiplied
// with is returned.
__device__ __forceinline__ float write_codes(const float (&x)[8], float most, bool rounds, int terms, i64 term_stride, u16* out) {
    float y[8], scale;
    if (rounds) {
        const u32 e = scale_for_e4m3(most);
        scale = scale_of_ue8m0(e);
        const float reciprocal = reciprocal_of_ue8m0(e);
        #pragma unroll
        for (int i = 0; i < 8; i++) y[i] = round_to_e4m3(x[i] * reciprocal);
    } else {
        // The largest becomes 2^13 and less than 2^14: its second term then has bits down to 2^-24, far below the first's last one.
        const u32 e = max(__float_as_uint(most) >> 23, 14u);
        scale = __uint_as_float((e - 13) << 23);
        const float reciprocal = __uint_as_float((267 - e) << 23);
        #pragma unroll
        for (int i = 0; i < 8; i++) y[i] = x[i] * reciprocal;
    }
    for (int term = 0; out && term < terms; term++) {
        u32 pair[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float& low = y[i % 2 * 4 + i / 2];
            float& high = y[i % 2 * 4 + i / 2 + 2];
            pair[i] = f16x2_of(low, high);
            low -= float_of_f16((u16)pair[i]);
            high -= float_of_f16((u16)(pair[i] >> 16));
        }
        *reinterpret_cast<uint4*>(out + term * term_stride) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
    return scale;
}

__device__ __forceinline__ void write_floats(float (&x)[8], i64 term_stride, u16* out) {
    for (int term = 0; term < 3; term++) {
        u32 pair[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            pair[i] = bf16x2_of(x[2 * i], x[2 * i + 1]);
            x[2 * i] -= low_bf16(pair[i]);
            x[2 * i + 1] -= high_bf16(pair[i]);
        }
        *reinterpret_cast<uint4*>(out + term * term_stride) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) prepare(const __grid_constant__ PrepareArgs a) {
    begin_after_launch_before();
    const int cols = a.out.cols, blocks = (cols + 127) / 128, at = blockIdx.x * THREADS + threadIdx.x;
    const int row = at / (blocks * 16), block = at / 16 % blocks, first = at % (blocks * 16) * 8;
    const bool is_inside = row < a.rows && first < cols;
    float x[8] = {};
    if (is_inside) {
        const float4* from = reinterpret_cast<const float4*>(a.in + (size_t)row * a.in_stride + first);
        const float4 low = from[0], high = from[1];
        x[0] = low.x; x[1] = low.y; x[2] = low.z; x[3] = low.w;
        x[4] = high.x; x[5] = high.y; x[6] = high.z; x[7] = high.w;
    }
    const size_t to = (size_t)row * cols + first;
    if (a.out.codes) {
        float most = 0.f;
        #pragma unroll
        for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(x[i]));
        #pragma unroll
        for (int bit = 8; bit; bit /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, bit));
        const float scale = write_codes(x, most, a.round_to_e4m3, a.out.terms, a.out.term_stride, is_inside ? a.out.codes + to : nullptr);
        if (row < a.rows && threadIdx.x % 16 == 0) a.out.scales[(size_t)row * blocks + block] = scale;
    }
    if (a.out.floats && is_inside) write_floats(x, a.out.term_stride, a.out.floats + to);
}
