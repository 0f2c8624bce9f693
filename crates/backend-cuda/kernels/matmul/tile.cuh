// A block's product of ROWS weight rows with TOKENS tokens, weights streamed once from memory in any format.
//
// Weights are the A operand of mma.m16n8k16, inputs the B operand. Both come through a ring of stages in shared memory, filled by
// 16-byte copies that run ahead (cp.async; rows are asked for even before the launch before has ended), with one barrier a stage.
// A stage is WARP_COLS *blocks* of columns, a block BLOCK_BYTES of each row: by format 32 (F32) to 256 (FP4) columns. Warps stand in a box of WARP_ROWS x WARP_COLS x WARP_TOKENS: those along
// WARP_COLS share rows and take a block of each stage, and their sums are added up at the end, in order.
//
// The instruction does not care which column is which as long as A and B agree, so of each 32 columns lane (g, t) has columns 8 t
// to 8 t + 7 of rows g and g + 8 and of token g: one load of each row and one of 16 bytes of the token, and nothing moves
// between lanes. Rows lie in shared memory with their 16-byte chunks exchanged so that no two lanes meet in a bank.
//
// FP8 becomes f16 by the instruction for it, FP4 by way of FP8: its bits, where FP8's are, are 2^-6 of it. Inputs for these two
// are f16 with a power of two for each 128 columns: what the publisher rounds to E4M3 is exact in one such term, and two hold 22 bits and
// a sign. Scales of weights and inputs multiply the float32 sums of 32 columns, which are never larger than float32 holds.
#pragma once
#include "args.cuh"

#ifndef WARP_ROWS
#define WARP_ROWS 8
#endif
#ifndef WARP_COLS
#define WARP_COLS 1
#endif
#ifndef WARP_TOKENS
#define WARP_TOKENS 1
#endif
#ifndef M_TILES
#define M_TILES 1
#endif
#ifndef N_TILES
#define N_TILES 1
#endif
#ifndef BLOCK_BYTES
#define BLOCK_BYTES 128
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef BLOCKS_MIN
#define BLOCKS_MIN 2
#endif

constexpr int WARPS = WARP_ROWS * WARP_COLS * WARP_TOKENS, THREADS = 32 * WARPS;
constexpr int ROWS = WARP_ROWS * M_TILES * 16, TOKENS = WARP_TOKENS * N_TILES * 8;

// A block of columns in a stage: rows, their scales (FP4), inputs, theirs.
template <int FORMAT, int TERMS> struct Block {
    static constexpr bool HAS_CODES = FORMAT == FP8 || FORMAT == FP4;
    static constexpr int BYTES = FORMAT == F32 ? 128 : BLOCK_BYTES;
    static constexpr int COLUMNS = FORMAT == F32 ? BYTES / 4 : FORMAT == BF16 ? BYTES / 2 : FORMAT == FP8 ? BYTES : 2 * BYTES;
    static constexpr int ROW_SCALES = FORMAT == FP4 ? COLUMNS / 32 : 0;              // of a row, a byte each
    static constexpr int INPUT_SCALES = !HAS_CODES ? 0 : COLUMNS > 128 ? COLUMNS / 128 : 1;    // of a token, float32
    static constexpr int SCALES_AT = ROWS * BYTES, INPUTS_AT = SCALES_AT + ROWS * ROW_SCALES;
    static constexpr int INPUT_SCALES_AT = INPUTS_AT + TERMS * TOKENS * COLUMNS * 2;
    static constexpr int ALL = INPUT_SCALES_AT + TOKENS * INPUT_SCALES * 4, STAGE = WARP_COLS * ALL;
};

constexpr int RING_BYTES = STAGES * Block<FP4, 2>::STAGE, STAGES_MAX = 6;
#ifdef EXPECTED_SHARED_BYTES
static_assert(RING_BYTES == EXPECTED_SHARED_BYTES, "src/matmul/variant.rs counts other shared memory");
#endif

typedef float Sums[M_TILES][N_TILES][4];

// This thread's place.
struct Place {
    int lane, row, cols, token;          // warps along each side of the box
    __device__ __forceinline__ Place() {
        const int warp = threadIdx.x >> 5;
        lane = threadIdx.x & 31;
        row = warp % WARP_ROWS;
        cols = warp / WARP_ROWS % WARP_COLS;
        token = warp / (WARP_ROWS * WARP_COLS);
    }
    // Calls visit(number, row of the block, token of the block) for each sum of this lane: total[m][n][i].
    template <typename Visit> __device__ __forceinline__ void each(Visit visit) const {
        #pragma unroll
        for (int m = 0; m < M_TILES; m++)
            #pragma unroll
            for (int n = 0; n < N_TILES; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    visit(m, n, i, (row * M_TILES + m) * 16 + lane / 4 + i / 2 * 8, (token * N_TILES + n) * 8 + lane % 4 * 2 + i % 2);
    }
};

// ROWS rows of one matrix, or 16 of each of two in turn. Rows behind the last are the last.
struct Rows {
    Matrix matrix, other;
    int first;
};
template <bool IS_PAIR> __device__ __forceinline__ const Matrix& matrix_of(const Rows& rows, int r) { return IS_PAIR && r / 16 % 2 ? rows.other : rows.matrix; }
template <bool IS_PAIR> __device__ __forceinline__ int row_of(const Rows& rows, int r) {
    return min(rows.first + (IS_PAIR ? r / 32 * 16 + r % 16 : r), rows.matrix.rows - 1);
}

// Inputs of the block's tokens: which rows of the prepared ones, in shared memory, and from which column on.
struct Inputs {
    const Prepared& prepared;
    const int* rows;
    int tokens, first_col;
};

// Where chunk `c` of row `r` lies: lanes that load at once have rows g and columns t.
template <int FORMAT, int BYTES> __device__ __forceinline__ int swizzled(int r, int c) {
    constexpr int LOAD_LOG = FORMAT == FP4 ? 0 : FORMAT == FP8 ? 1 : FORMAT == BF16 ? 2 : 0;       // chunks that the lanes of a row load
    const int line = BYTES == 128 ? r : r / 2;
    if (FORMAT == F32) return c ^ (r & 1);
    return c ^ ((line << LOAD_LOG) & (BYTES / 16 - 1));
}
template <int COLUMNS> __device__ __forceinline__ int swizzled_input(int token, int c) { return COLUMNS >= 64 ? c ^ ((token & 1) << 2) : c; }

__device__ __forceinline__ u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

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

// Columns 8 t .. 8 t + 7 of rows g and g + 8, as two A operands. Codes come even columns first, as their inputs do (args.cuh).
template <int FORMAT, int BYTES, int TERMS>
__device__ __forceinline__ void load_weights(u32 rows, int first, int lane, int j, u32 (&a)[TERMS][2][4]) {
    const int g = lane >> 2, t = lane & 3;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = first + g + 8 * half;
        const u32 row = rows + r * BYTES;
        if (FORMAT == FP4) {
            const u32 v = load_shared_u32(row + swizzled<FORMAT, BYTES>(r, j) * 16 + t * 4);
            const u32 even = (v << 2 & 0x1c1c1c1cu) | (v << 4 & 0x80808080u), odd = (v >> 2 & 0x1c1c1c1cu) | (v & 0x80808080u);
            f16x4_of_e4m3x4(even, a[0][0][half], a[0][0][half + 2]);
            f16x4_of_e4m3x4(odd, a[0][1][half], a[0][1][half + 2]);
        } else if (FORMAT == FP8) {
            const u64 v = load_shared_8(row + swizzled<FORMAT, BYTES>(r, 2 * j + t / 2) * 16 + t % 2 * 8);
            f16x4_of_e4m3x4(__byte_perm((u32)v, (u32)(v >> 32), 0x6420), a[0][0][half], a[0][0][half + 2]);
            f16x4_of_e4m3x4(__byte_perm((u32)v, (u32)(v >> 32), 0x7531), a[0][1][half], a[0][1][half + 2]);
        } else if (FORMAT == BF16) {
            const uint4 v = load_shared_16(row + swizzled<FORMAT, BYTES>(r, 4 * j + t) * 16);
            #pragma unroll
            for (int i = 0; i < 4; i++) a[0][i / 2][half + i % 2 * 2] = word(v, i);
        } else {
            #pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint4 v = load_shared_16(row + swizzled<FORMAT, BYTES>(r, 8 * j + 2 * t + s) * 16);
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    const Terms pair = terms_of(__uint_as_float(word(v, 2 * i)), __uint_as_float(word(v, 2 * i + 1)));
                    #pragma unroll
                    for (int term = 0; term < TERMS; term++) a[term][s][half + 2 * i] = pair.term[term];
                }
            }
        }
    }
}

// Scale j of the (at most 8) that a row has in a block, as they lie in two words. 2^-127 is taken for 0 and what is no number for infinity.
__device__ __forceinline__ float scale_in(u64 scales, int j) {
    const u32 half = (u32)(scales >> 32 * (j / 4)), bits = j % 4 == 3 ? half >> 1 : half << (23 - 8 * (j % 4));
    return __uint_as_float(bits & 0x7f800000u);
}

// Adds the products of a warp's block in a stage; `scale8` are the weights' where they are FP8.
template <int FORMAT, int TERMS>
__device__ __forceinline__ void multiply_block(u32 block, const Place& at, int tokens, const float (&scale8)[M_TILES], Sums& total) {
    typedef Block<FORMAT, TERMS> B;
    constexpr int WEIGHT_TERMS = FORMAT == F32 ? 3 : 1, EACH = B::COLUMNS < 128 ? B::COLUMNS / 32 : 4;     // of 32 columns, with inputs of one scale
    const int g = at.lane >> 2, t = at.lane & 3, first_token = at.token * N_TILES * 8;
    u64 scales[M_TILES][2];
    #pragma unroll
    for (int i = 0; i < 2 * M_TILES; i++) {
        const u32 row = block + B::SCALES_AT + ((at.row * M_TILES + i / 2) * 16 + g + 8 * (i % 2)) * B::ROW_SCALES;
        scales[i / 2][i % 2] = FORMAT != FP4 ? 0 : B::ROW_SCALES == 8 ? load_shared_8(row) : load_shared_u32(row);
    }
    #pragma unroll
    for (int group = 0; group < B::COLUMNS / 32 / EACH; group++) {
        float input_scale[N_TILES][2];
        #pragma unroll
        for (int i = 0; i < 2 * N_TILES; i++)
            input_scale[i / 2][i % 2] = !B::HAS_CODES ? 1.f : load_shared_float(block + B::INPUT_SCALES_AT + ((first_token + i / 2 * 8 + 2 * t + i % 2) * B::INPUT_SCALES + group) * 4);
        #pragma unroll (M_TILES * N_TILES <= 2 ? EACH : FORMAT == FP4 ? 2 : 1)
        for (int j = 0; j < EACH; j++) {
            u32 a[M_TILES][WEIGHT_TERMS][2][4];
            float scale[M_TILES][2];
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                load_weights<FORMAT, B::BYTES, WEIGHT_TERMS>(block, (at.row * M_TILES + m) * 16, at.lane, group * EACH + j, a[m]);
                #pragma unroll
                for (int half = 0; half < 2; half++) scale[m][half] = FORMAT == FP4 ? scale_in(scales[m][half], group * EACH + j) : scale8[m];
            }
            #pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                const int token = first_token + 8 * n;
                if (token >= tokens) break;
                float sum[M_TILES][4] = {};
                #pragma unroll
                for (int term = TERMS - 1; term >= 0; term--) {         // small products first
                    const u32 row = block + B::INPUTS_AT + (term * TOKENS + token + g) * B::COLUMNS * 2;
                    const uint4 b = load_shared_16(row + swizzled_input<B::COLUMNS>(g, 4 * (group * EACH + j) + t) * 16);
                    #pragma unroll
                    for (int m = 0; m < M_TILES; m++)
                        #pragma unroll
                        for (int i = WEIGHT_TERMS - 1; i >= 0; i--) {
                            if (i + term > 2) continue;
                            if (B::HAS_CODES) mma_f16_k32(sum[m], a[m][i], b);
                            else mma_bf16_k32(sum[m], a[m][i], b);
                        }
                }
                #pragma unroll
                for (int m = 0; m < M_TILES; m++)
                    #pragma unroll
                    for (int i = 0; i < 4; i++) total[m][n][i] += B::HAS_CODES ? sum[m][i] * (scale[m][i / 2] * input_scale[n][i % 2]) : sum[m][i];
            }
        }
    }
}

// What a thread copies for each stage.
template <int FORMAT, int TERMS, bool IS_PAIR> struct Copies {
    typedef Block<FORMAT, TERMS> B;
    static constexpr int CHUNKS = B::BYTES / 16, PIECES = WARP_COLS * CHUNKS, STEP = THREADS / PIECES, EACH = ROWS / STEP;
    static constexpr int INPUT_CHUNKS = B::COLUMNS / 8, INPUT_PIECES = WARP_COLS * INPUT_CHUNKS, INPUT_STEP = THREADS / INPUT_PIECES;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0 && THREADS % INPUT_PIECES == 0 && WARP_COLS * ROWS <= THREADS, "threads share copies evenly");
    static_assert(TOKENS * WARP_COLS * (B::INPUT_SCALES > 0 ? B::INPUT_SCALES : 1) <= THREADS, "a scale a thread");

    const Inputs& in;
    const u16* numbers;
    const u8* from[EACH];
    const u8* scales;
    u32 to;
    int row_bytes, cols, piece, input_piece;
    bool scales_are_aligned;

    __device__ __forceinline__ Copies(const Rows& rows, const Inputs& inputs) : in(inputs) {
        const Matrix& m = rows.matrix;
        numbers = (B::HAS_CODES ? in.prepared.codes : in.prepared.floats) + in.first_col;
        row_bytes = (int)::row_bytes(m);
        cols = m.cols;
        piece = threadIdx.x % PIECES;
        input_piece = threadIdx.x % INPUT_PIECES;
        const int r = threadIdx.x / PIECES;
        to = piece / CHUNKS * B::ALL + r * B::BYTES + swizzled<FORMAT, B::BYTES>(r, piece % CHUNKS) * 16;
        #pragma unroll
        for (int i = 0; i < EACH; i++)
            from[i] = matrix_of<IS_PAIR>(rows, r + i * STEP).data + (size_t)row_of<IS_PAIR>(rows, r + i * STEP) * row_bytes + piece * 16;
        const int scale_row = threadIdx.x / WARP_COLS % ROWS;
        const Matrix& of = matrix_of<IS_PAIR>(rows, scale_row);
        scales = of.scales + (size_t)(of.first_row + row_of<IS_PAIR>(rows, scale_row)) * of.scale_stride + of.first_col / 32;
        scales_are_aligned = ((u64)of.scales | of.scale_stride | of.first_col / 32) % (B::ROW_SCALES > 0 ? B::ROW_SCALES : 1) == 0;
    }

    // Of the stage of blocks `block .. block + WARP_COLS`, its rows.
    __device__ __forceinline__ void fetch_rows(u32 stage, int block) const {
        const int at = block * B::BYTES;
        if (at + WARP_COLS * B::BYTES <= row_bytes) {
            #pragma unroll
            for (int i = 0; i < EACH; i++) copy_16_bytes(stage + to + i * STEP * B::BYTES, from[i] + at);
        } else {
            const bool is_inside = at + piece * 16 < row_bytes;
            #pragma unroll
            for (int i = 0; i < EACH; i++) copy_16_bytes(stage + to + i * STEP * B::BYTES, is_inside ? from[i] + at : from[i] - piece * 16, is_inside ? 16 : 0);
        }
    }

    // The rest.
    __device__ __forceinline__ void fetch_inputs(u32 stage, int block) const {
        const int column = block * B::COLUMNS + input_piece * 8;
        const bool has_inputs = column < cols;
        const u32 input_to = stage + input_piece / INPUT_CHUNKS * B::ALL + B::INPUTS_AT;
        #pragma unroll
        for (int i = 0; i < (TERMS * TOKENS + INPUT_STEP - 1) / INPUT_STEP; i++) {
            const int q = threadIdx.x / INPUT_PIECES + i * INPUT_STEP, token = q / TERMS, term = q % TERMS;
            if (token >= in.tokens) break;
            const u16* input = numbers + (i64)in.rows[token] * in.prepared.cols + term * in.prepared.term_stride + (has_inputs ? column : 0);
            copy_16_bytes(input_to + (term * TOKENS + token) * B::COLUMNS * 2 + swizzled_input<B::COLUMNS>(token, input_piece % INPUT_CHUNKS) * 16, input, has_inputs ? 16 : 0);
        }
        if (B::HAS_CODES) fetch_input_scales(stage, block);
        if (FORMAT == FP4) fetch_row_scales(stage, block);
    }

    __device__ __forceinline__ void fetch_input_scales(u32 stage, int block) const {
        constexpr int EACH_TOKEN = WARP_COLS * (B::INPUT_SCALES > 0 ? B::INPUT_SCALES : 1);
        const int token = threadIdx.x / EACH_TOKEN, k = threadIdx.x % EACH_TOKEN;
        if (token >= in.tokens) return;
        const int block_of_128 = (block * B::COLUMNS + k * (B::COLUMNS > 128 ? 128 : B::COLUMNS)) / 128;
        const bool is_inside = block_of_128 * 128 < cols;
        const float* from = in.prepared.scales + (i64)in.rows[token] * ((in.prepared.cols + 127) / 128) + in.first_col / 128 + (is_inside ? block_of_128 : 0);
        const u32 block_at = stage + k * WARP_COLS / EACH_TOKEN * B::ALL;
        copy_4_bytes(block_at + B::INPUT_SCALES_AT + (token * B::INPUT_SCALES + k % (EACH_TOKEN / WARP_COLS)) * 4, from, is_inside ? 4 : 0);
    }

    __device__ __forceinline__ void fetch_row_scales(u32 stage, int block) const {
        const int k = threadIdx.x % WARP_COLS, r = threadIdx.x / WARP_COLS, first = (block + k) * B::ROW_SCALES;
        if (r >= ROWS) return;
        const u32 to = stage + k * B::ALL + B::SCALES_AT + r * B::ROW_SCALES;
        const int bytes = max(0, min(B::ROW_SCALES, cols / 32 - first));
        const u8* from = scales + (bytes ? first : 0);
        if (scales_are_aligned && B::ROW_SCALES == 8) copy_8_bytes(to, from, bytes);
        else if (scales_are_aligned) copy_4_bytes(to, from, bytes);
        else
            for (int i = 0; i < B::ROW_SCALES; i++) store_shared_u8(to + i, i < bytes ? from[i] : 0);     // rows of a small model
    }
};

// Adds stages `first .. first + count` of the rows to `total`, in all of the block's threads. With a head start, rows are asked for
// before the launch before has ended, which makes the inputs.
template <int FORMAT, int TERMS, bool IS_PAIR, bool HEAD_START>
__device__ __forceinline__ void multiply_stages(const Rows& rows, const Inputs& in, int first, int count, u32 ring, Sums& total) {
    typedef Block<FORMAT, TERMS> B;
    constexpr int DEPTH = RING_BYTES / B::STAGE < STAGES_MAX ? RING_BYTES / B::STAGE : STAGES_MAX;
    static_assert(DEPTH >= 2, "a stage is copied while another is multiplied");
    const Place at;
    const Copies<FORMAT, TERMS, IS_PAIR> copies(rows, in);
    auto stage_at = [&](int i) { return ring + i % DEPTH * B::STAGE; };
    auto fetch = [&](int i, bool has_rows = false) {
        if (i < count) {
            if (!has_rows) copies.fetch_rows(stage_at(i), (first + i) * WARP_COLS);
            copies.fetch_inputs(stage_at(i), (first + i) * WARP_COLS);
        }
        commit_copies();
    };
    // FP8: a byte for the 16 rows of an M-tile and 128 columns, a stage ahead.
    const u8* scales[M_TILES];
    u32 next[M_TILES] = {};
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        const int r = (at.row * M_TILES + m) * 16;
        const Matrix& of = matrix_of<IS_PAIR>(rows, r);
        scales[m] = of.scales + (size_t)((of.first_row + row_of<IS_PAIR>(rows, r)) / 128) * of.scale_stride + of.first_col / 128;
    }
    auto fetch_scales = [&](int i) {
        const int column = ((first + i) * WARP_COLS + at.cols) * B::COLUMNS;
        #pragma unroll
        for (int m = 0; m < M_TILES; m++)
            if (FORMAT == FP8) next[m] = column < rows.matrix.cols ? __ldg(scales[m] + column / 128) : 0;
    };
    // The first stage waits for all rows of a head start.
    #pragma unroll
    for (int i = 0; i < DEPTH - 1; i++)
        if (HEAD_START && i < count) copies.fetch_rows(stage_at(i), (first + i) * WARP_COLS);
    if (HEAD_START) wait_for_launch_before();
    #pragma unroll
    for (int i = 0; i < DEPTH - 1; i++) fetch(i, HEAD_START);
    if (count > 0) fetch_scales(0);
    for (int i = 0; i < count; i++) {
        float scale8[M_TILES];
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) scale8[m] = FORMAT == FP8 ? scale_of_ue8m0(next[m]) : 1.f;
        if (i + 1 < count) fetch_scales(i + 1);
        wait_for_groups<DEPTH - 2>();
        __syncthreads();
        fetch(i + DEPTH - 1);            // into the place of stage i - 1, which all have left
        multiply_block<FORMAT, TERMS>(stage_at(i) + at.cols * B::ALL, at, in.tokens, scale8, total);
    }
    wait_for_copies();
    __syncthreads();
    if (FORMAT == FP4) {
        #pragma unroll
        for (int i = 0; i < M_TILES * N_TILES * 4; i++) total[i / 4 / N_TILES][i / 4 % N_TILES][i % 4] *= 64.f;
    }
}

// Sums of the warps that share rows, added up in order: the first of them has the whole. The ring is free.
__device__ __forceinline__ void add_up(u32 ring, Sums& total) {
    if (WARP_COLS == 1) return;
    static_assert((WARP_COLS - 1) * ROWS * TOKENS * 4 <= RING_BYTES, "sums fit the ring");
    const Place at;
    constexpr int NUMBERS = M_TILES * N_TILES * 4;
    const int others = WARP_ROWS * WARP_TOKENS, own = at.token * WARP_ROWS + at.row;
    auto place = [&](int k, int i) { return ring + (u32)((((k - 1) * others + own) * NUMBERS + i) * 32 + at.lane) * 4; };
    #pragma unroll
    for (int i = 0; i < NUMBERS; i++)
        if (at.cols > 0) store_shared_float(place(at.cols, i), total[i / 4 / N_TILES][i / 4 % N_TILES][i % 4]);
    __syncthreads();
    if (at.cols > 0) return;
    #pragma unroll
    for (int k = 1; k < WARP_COLS; k++)
        #pragma unroll
        for (int i = 0; i < NUMBERS; i++) total[i / 4 / N_TILES][i / 4 % N_TILES][i % 4] += load_shared_float(place(k, i));
}

// Bytes of a row in a stage, and how many stages it has.
__device__ __forceinline__ int stage_bytes(int format) { return WARP_COLS * (format == F32 ? 128 : BLOCK_BYTES); }
__device__ __forceinline__ int stages_of(const Matrix& m) { return ((int)row_bytes(m) + stage_bytes(m.format) - 1) / stage_bytes(m.format); }

// The product in whatever format the matrix has, of stages `first .. first + count`; whole in warps whose `cols` is 0.
template <bool IS_PAIR, bool HEAD_START>
__device__ __forceinline__ void multiply(const Rows& rows, const Inputs& in, int first, int count, u32 ring, Sums& total) {
    const int format = rows.matrix.format;
    if (format == FP8 && in.prepared.terms == 1) multiply_stages<FP8, 1, IS_PAIR, HEAD_START>(rows, in, first, count, ring, total);
    else if (format == FP8) multiply_stages<FP8, 2, IS_PAIR, HEAD_START>(rows, in, first, count, ring, total);
    else if (format == FP4 && in.prepared.terms == 1) multiply_stages<FP4, 1, IS_PAIR, HEAD_START>(rows, in, first, count, ring, total);
    else if (format == FP4) multiply_stages<FP4, 2, IS_PAIR, HEAD_START>(rows, in, first, count, ring, total);
    else if (format == BF16) multiply_stages<BF16, 3, IS_PAIR, HEAD_START>(rows, in, first, count, ring, total);
    else multiply_stages<F32, 3, IS_PAIR, HEAD_START>(rows, in, first, count, ring, total);
    add_up(ring, total);
}
