// One warp's product of M_TILES x 16 weight rows with N_TILES x 8 tokens, weights streamed once from memory in any format.
//
// Weights are the A operand of mma.m16n8k16. The instruction does not care which column is which as long as A and B agree, so
// lane (g, t) takes 16 consecutive bytes of rows g and g + 8 and calls them its own columns: loads are 16 bytes wide, and
// nothing moves between lanes. A *block* is 128 bytes of each row: 256, 128, 64 or 32 columns by format.
//
// Every lane copies its own pieces into its own places of a ring in shared memory and reads them back itself: the ring
// is a queue of STAGES blocks, no barrier or other lane has a part in it, and no two lanes meet in a bank. Inputs come through L1, which
// the copies pass by (cp.async.cg): the warps of a block multiply the same columns at about the same time.
//
// FP8 and FP4 become BF16 exactly: their bits are moved to the places of a BF16's exponent and fraction, which leaves them
// 2^120 (FP8) or 2^126 (FP4) too small, subnormals included, and one multiplication puts that right; FP4 brings its scale in
// by that multiplication. FP8 scales multiply the float32 sums of 64 columns.
#pragma once
#include "args.cuh"

#ifndef M_TILES
#define M_TILES 1
#endif
#ifndef N_TILES
#define N_TILES 1
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef STAGES
#define STAGES 4
#endif

constexpr int THREADS = 32 * WARPS, TOKENS = 8 * N_TILES;
constexpr int BLOCK_BYTES = 128, PIECES = 4;                     // of a row; of a lane: rows g and g + 8, first and second half
constexpr int STAGE_BYTES = M_TILES * PIECES * 512, RING_BYTES = STAGES * STAGE_BYTES;
constexpr int SHARED_BYTES = WARPS * RING_BYTES;
#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "src/matmul/variant.rs counts other shared memory");
#endif

typedef float Sums[M_TILES][N_TILES][4];

// 16 rows of a matrix as a lane sees them: row g and row g + 8. Rows behind the last are the last.
struct SixteenRows {
    const u8* data[2];
    const u8* scales[2];                 // FP8: both the same
};

__device__ __forceinline__ SixteenRows sixteen_rows(const Matrix& m, int first, int lane) {
    SixteenRows rows;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = min(first + lane / 4 + 8 * i, m.rows - 1);
        rows.data[i] = m.data + (size_t)row * row_bytes(m);
        const int scale_row = m.format == FP8 ? (m.first_row + min(first, m.rows - 1)) / 128 : m.first_row + row;
        rows.scales[i] = m.scales + (size_t)scale_row * m.scale_stride + m.first_col / (m.format == FP8 ? 128 : 32);
    }
    return rows;
}

// Inputs of the warp's tokens: `row[n]` is that of token 8 n + g; tokens behind the last are the last.
struct Inputs {
    const void* row[N_TILES];
    u32 term_stride;                     // of prepared ones, 16 bytes each; 0: one term
    int tokens;
};

// Columns of a lane in half a block, and of all lanes.
template <int FORMAT> constexpr int OWN = FORMAT == F32 ? 4 : FORMAT == BF16 ? 8 : FORMAT == FP8 ? 16 : 32;

__device__ __forceinline__ u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Of 8 columns in two words, column i and column i + 4.
__device__ __forceinline__ u32 bf16x2_of_e4m3(u32 first, u32 second, int i) {
    const u32 both = __byte_perm(first, second, (4 + i) << 12 | i << 4);
    return multiply_bf16x2((both & 0x80008000u) | (both >> 4 & 0x07f007f0u), 0x7b807b80u);
}
// Of 8 columns in one word, column i and column i + 4, times 2^-126.
__device__ __forceinline__ u32 small_bf16x2_of_e2m1(u32 word, int i) {
    const u32 magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
    return (word << (12 - 4 * i) & 0x80008000u) | (magnitude & 0x01c001c0u);
}

// bf16x2 2^(e - 1), e at most 128, so that a small number times it has the scale 2^(e - 127).
__device__ __forceinline__ u32 factor_of_ue8m0(u32 e) { return (e + 126) << 7 | (e + 126) << 23; }

// A pair as three bf16 terms whose sum it is.
struct Terms { u32 term[3]; };
__device__ __forceinline__ Terms terms_of(float low, float high) {
    Terms t;
    #pragma unroll
    for (int i = 0; i < 3; i++) {
        t.term[i] = bf16x2_of(low, high);
        low -= low_bf16(t.term[i]);
        high -= high_bf16(t.term[i]);
    }
    return t;
}

// Half a block of FP8 or FP4: prepared inputs of so many terms, `column` the lane's first.
template <int FORMAT, int TERMS>
__device__ __forceinline__ void multiply_half_of_codes(const uint4 (&low)[M_TILES], const uint4 (&high)[M_TILES], const u32 (&scale)[M_TILES][2],
                                                      const Inputs& in, int column, bool is_inside, Sums& total) {
    constexpr int STEPS = OWN<FORMAT> / 4;
    u32 a[M_TILES][STEPS][4];
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        #pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {               // pairs of columns
            const int group = i / 4, pair = i % 4;
            if (FORMAT == FP8) {
                a[m][i / 2][i % 2 * 2] = bf16x2_of_e4m3(word(low[m], 2 * group), word(low[m], 2 * group + 1), pair);
                a[m][i / 2][i % 2 * 2 + 1] = bf16x2_of_e4m3(word(high[m], 2 * group), word(high[m], 2 * group + 1), pair);
            } else {
                a[m][i / 2][i % 2 * 2] = multiply_bf16x2(small_bf16x2_of_e2m1(word(low[m], group), pair), factor_of_ue8m0(min(scale[m][0], 128u)));
                a[m][i / 2][i % 2 * 2 + 1] = multiply_bf16x2(small_bf16x2_of_e2m1(word(high[m], group), pair), factor_of_ue8m0(min(scale[m][1], 128u)));
            }
        }
        // Scales above 2 do not fit the one factor: no checkpoint has them, but they are numbers.
        if (FORMAT == FP4 && __any_sync(~0u, max(scale[m][0], scale[m][1]) > 128)) {
            #pragma unroll
            for (int i = 0; i < 4 * STEPS; i++) a[m][i / 4][i % 4] = multiply_bf16x2(a[m][i / 4][i % 4], (max(scale[m][i % 2], 128u) - 1) * 0x00800080u);
        }
    }
    #pragma unroll 1
    for (int term = TERMS - 1; term >= 0; term--) {         // small products first
        #pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            if (8 * n >= in.tokens) break;
            uint4 b[STEPS / 2] = {};
            const uint4* row = reinterpret_cast<const uint4*>(static_cast<const u16*>(in.row[n]) + column) + term * in.term_stride;
            #pragma unroll
            for (int i = 0; i < STEPS / 2; i++)
                if (is_inside) b[i] = __ldg(row + i);
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                if (FORMAT == FP8) {
                    float sum[4] = {};
                    #pragma unroll
                    for (int s = 0; s < STEPS; s++) mma_bf16(sum, a[m][s], word(b[s / 2], s % 2 * 2), word(b[s / 2], s % 2 * 2 + 1));
                    #pragma unroll
                    for (int i = 0; i < 4; i++) total[m][n][i] += sum[i] * scale_of_ue8m0(scale[m][0]);
                } else {
                    #pragma unroll
                    for (int s = 0; s < STEPS; s++) mma_bf16(total[m][n], a[m][s], word(b[s / 2], s % 2 * 2), word(b[s / 2], s % 2 * 2 + 1));
                }
            }
        }
    }
}

// Half a block of BF16 or F32: float32 inputs in plain order.
template <int FORMAT>
__device__ __forceinline__ void multiply_half_of_floats(const uint4 (&low)[M_TILES], const uint4 (&high)[M_TILES], const Inputs& in, int column,
                                                       bool is_inside, Sums& total) {
    constexpr int STEPS = OWN<FORMAT> / 4, TERMS = FORMAT == F32 ? 3 : 1;
    u32 a[M_TILES][STEPS][TERMS][4];
    #pragma unroll
    for (int m = 0; m < M_TILES; m++)
        #pragma unroll
        for (int i = 0; i < 4 * STEPS; i++) {
            const uint4& v = i % 2 ? high[m] : low[m];
            const int pair = i / 2;
            if (FORMAT == BF16) a[m][i / 4][0][i % 4] = word(v, pair);
            else {
                const Terms t = terms_of(__uint_as_float(word(v, 2 * pair % 4)), __uint_as_float(word(v, 2 * pair % 4 + 1)));
                #pragma unroll
                for (int term = 0; term < TERMS; term++) a[m][i / 4][term][i % 4] = t.term[term];
            }
        }
    #pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        if (8 * n >= in.tokens) break;
        const float4* row = reinterpret_cast<const float4*>(static_cast<const float*>(in.row[n]) + column);
        #pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const float4 v = is_inside ? __ldg(row + s) : make_float4(0.f, 0.f, 0.f, 0.f);
            const Terms b0 = terms_of(v.x, v.y), b1 = terms_of(v.z, v.w);
            #pragma unroll
            for (int m = 0; m < M_TILES; m++)
                #pragma unroll
                for (int i = 2; i >= 0; i--)                // small products first
                    #pragma unroll
                    for (int j = 0; j < TERMS; j++)
                        if (i + j <= 2) mma_bf16(total[m][n], a[m][s][j], b0.term[i], b1.term[i]);
        }
    }
}

// Adds blocks `first .. first + count` of the rows to `total`. `ring` is the warp's; TERMS are those of prepared inputs.
template <int FORMAT, int TERMS>
__device__ __forceinline__ void multiply_blocks(const SixteenRows (&rows)[M_TILES], int row_bytes, const Inputs& in, int first, int count, u32 ring,
                                               int lane, Sums& total) {
    const int t = lane & 3;
    auto fetch = [&](int i) {
        if (i < count) {
            #pragma unroll
            for (int m = 0; m < M_TILES; m++)
                #pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    const int at = (first + i) * BLOCK_BYTES + p / 2 * 64 + t * 16;
                    const bool is_inside = at < row_bytes;
                    const u32 to = ring + i % STAGES * STAGE_BYTES + (m * PIECES + p) * 512 + lane * 16;
                    copy_16_bytes(to, rows[m].data[p % 2] + (is_inside ? at : 0), is_inside ? 16 : 0);
                }
        }
        commit_copies();
    };
    // One byte a block (FP8) or one a half and row (FP4), a block ahead.
    u32 scale[M_TILES][2][2] = {};
    auto fetch_scales = [&](int i) {
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            if (FORMAT == FP8) scale[m][0][0] = scale[m][0][1] = scale[m][1][0] = scale[m][1][1] = __ldg(rows[m].scales[0] + first + i);
            if (FORMAT == FP4) {
                #pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    const int at = (first + i) * 8 + p / 2 * 4 + t;
                    scale[m][p / 2][p % 2] = __ldg(rows[m].scales[p % 2] + (at * 16 < row_bytes ? at : 0));
                }
            }
        }
    };
    #pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fetch(i);
    if (count > 0) fetch_scales(0);
    for (int i = 0; i < count; i++) {
        u32 now[M_TILES][2][2];
        #pragma unroll
        for (int j = 0; j < 4 * M_TILES; j++) now[j / 4][j / 2 % 2][j % 2] = scale[j / 4][j / 2 % 2][j % 2];
        if (i + 1 < count) fetch_scales(i + 1);
        wait_for_groups<STAGES - 2>();
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            if ((first + i) * BLOCK_BYTES + half * 64 >= row_bytes) break;      // rows of a small model end here
            uint4 low[M_TILES], high[M_TILES];
            u32 factor[M_TILES][2];
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const u32 from = ring + i % STAGES * STAGE_BYTES + (m * PIECES + 2 * half) * 512 + lane * 16;
                low[m] = load_shared_16(from);
                high[m] = load_shared_16(from + 512);
                factor[m][0] = now[m][half][0];
                factor[m][1] = now[m][half][1];
            }
            const int at = (first + i) * BLOCK_BYTES + half * 64 + t * 16, column = at / 16 * OWN<FORMAT>;
            if constexpr (FORMAT == FP8 || FORMAT == FP4) multiply_half_of_codes<FORMAT, TERMS>(low, high, factor, in, column, at < row_bytes, total);
            else multiply_half_of_floats<FORMAT>(low, high, in, column, at < row_bytes, total);
        }
        fetch(i + STAGES - 1);           // into the place of block i - 1, whose numbers are long in registers
    }
    wait_for_copies();
}

// The same in whatever format the matrix has.
__device__ __forceinline__ void multiply(const SixteenRows (&rows)[M_TILES], int format, int row_bytes, const Inputs& in, int first, int count,
                                         u32 ring, int lane, Sums& total) {
    if (format == FP8 && !in.term_stride) multiply_blocks<FP8, 1>(rows, row_bytes, in, first, count, ring, lane, total);
    else if (format == FP8) multiply_blocks<FP8, 3>(rows, row_bytes, in, first, count, ring, lane, total);
    else if (format == FP4 && !in.term_stride) multiply_blocks<FP4, 1>(rows, row_bytes, in, first, count, ring, lane, total);
    else if (format == FP4) multiply_blocks<FP4, 3>(rows, row_bytes, in, first, count, ring, lane, total);
    else if (format == BF16) multiply_blocks<BF16, 0>(rows, row_bytes, in, first, count, ring, lane, total);
    else multiply_blocks<F32, 0>(rows, row_bytes, in, first, count, ring, lane, total);
}
