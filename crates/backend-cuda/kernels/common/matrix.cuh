// A weight matrix as it is stored, and its numbers one by one. Mirrored by src/backend/arguments.rs: change both.
//
// Row major, `[rows, cols]`: y = W x. FP8 has a UE8M0 scale for each block of 128 x 128, FP4 (two columns a byte, the low
// nibble first) one for each row and 32 columns. A rank's slice keeps the scales of the whole matrix and says where in
// it the slice starts.
#pragma once
#include "device.cuh"

enum Format : int { F32, BF16, FP8, FP4 };

struct Matrix {
    const u8* data;
    const u8* scales;
    int rows, cols, format;
    int first_row, first_col;            // of the slice, where the scales are concerned
    int scale_stride;
};

__device__ __forceinline__ size_t row_bytes(const Matrix& m) {
    return m.format == F32 ? (size_t)m.cols * 4 : m.format == BF16 ? (size_t)m.cols * 2 : m.format == FP8 ? (size_t)m.cols : (size_t)m.cols / 2;
}

// The product of a row with `x`.
__device__ __forceinline__ float dot(const Matrix& m, int row, const float* x) {
    const u8* data = m.data + (size_t)row * row_bytes(m);
    if (m.format == F32) return dot_of(m.cols, x, [&](int c) { return ((const float*)data)[c]; });
    if (m.format == BF16) return dot_of(m.cols, x, [&](int c) { return float_of_bf16(((const u16*)data)[c]); });
    if (m.format == FP8) {
        const u8* scales = m.scales + (size_t)((m.first_row + row) / 128) * m.scale_stride;
        return dot_of(m.cols, x, [&](int c) { return float_of_e4m3(data[c]) * scale_of_ue8m0(scales[(m.first_col + c) / 128]); });
    }
    const u8* scales = m.scales + (size_t)(m.first_row + row) * m.scale_stride;
    return dot_of(m.cols, x, [&](int c) { return float_of_e2m1(data[c / 2] >> 4 * (c & 1)) * scale_of_ue8m0(scales[(m.first_col + c) / 32]); });
}
