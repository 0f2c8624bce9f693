// Activations as FP8 and FP4 matrices take them (args.cuh): BF16, reordered within each 8 columns, and first rounded to
// E4M3 with a power of two for each 128 columns if asked, which BF16 then holds exactly; or in three terms, which hold float32. A thread
// has 8 columns, 16 threads a block of 128.
#include "args.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) prepare(const __grid_constant__ PrepareArgs a) {
    const int each_row = (a.cols + 127) / 128 * 16, at = blockIdx.x * THREADS + threadIdx.x;
    const int row = at / each_row, first = at % each_row * 8;
    const bool is_inside = row < a.rows && first < a.cols;
    float x[8] = {};
    float most = 0.f;
    if (is_inside) {
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            if (first + i >= a.cols) break;
            const size_t from = (size_t)row * a.in_stride + first + i;
            x[i] = a.is_bf16 ? float_of_bf16(static_cast<const u16*>(a.in)[from]) : static_cast<const float*>(a.in)[from];
            most = fmaxf(most, fabsf(x[i]));
        }
    }
    if (a.round_to_e4m3) {
        #pragma unroll
        for (int bit = 8; bit; bit /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, bit));
        const u32 e = scale_for_e4m3(most);
        const float scale = scale_of_ue8m0(e), reciprocal = reciprocal_of_ue8m0(e);
        #pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const u32 codes = e4m3x2_of(x[i] * reciprocal, x[i + 1] * reciprocal);
            x[i] = float_of_e4m3((u8)codes) * scale;
            x[i + 1] = float_of_e4m3((u8)(codes >> 8)) * scale;
        }
    }
    if (!is_inside) return;
    for (int term = 0; term < a.terms; term++) {
        u32 pair[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            pair[i] = bf16x2_of(x[i], x[i + 4]);
            x[i] -= low_bf16(pair[i]);
            x[i + 4] -= high_bf16(pair[i]);
        }
        *reinterpret_cast<uint4*>(a.out + ((size_t)term * a.rows + row) * a.cols + first) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
}
