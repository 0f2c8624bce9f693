// What stands around decode attention in a step, whose kernels know neither a step nor a page table: lists of entries, queries
// normed, rotated and rounded to bf16, answers rotated back.
//
// Lists are made once a step for all layers (window, all HCA entries), and of selected entries once a layer. They hold page x
// slots + slot, as args.cuh says. The window's tokens of this step are in the ring already: rows here are short (see
// `append_window` in ../attention/v1_naive.cu).
//
// Queries become half as large. They go where answers are wanted, and answers of the decode kernel where the queries were, so
// that no memory is taken for either. A decode kernel gives every score a finite weight: queries that are no numbers would
// have answers that look like any other, so they are noted, and their answers made NaN.
#include "step.cuh"

constexpr int THREADS = 128, HEADS = THREADS / 32;   // a warp a head

struct ListsArgs {
    Step step;
    int* window;                     // [tokens, WINDOW]
    int* entries;                    // [tokens, entries_stride]: of HCA layers, all that are complete
    int* lengths[3];                 // [tokens] each: of the window, of selected entries, of `entries`
    int entries_stride, entry_slots; // entries of an HCA page
    int ratios[2];                   // tokens of an entry: CSA, HCA
    int top, unused;
};

// Grid: tokens.
extern "C" __global__ void __launch_bounds__(THREADS) lists(const __grid_constant__ ListsArgs a) {
    begin_after_launch_before();
    const int token = blockIdx.x, row = a.step.row_of[token], position = a.step.positions[token];
    const int window = min(position + 1, WINDOW), first = position + 1 - window;
    const int entries = min((position + 1) / a.ratios[1], a.entries_stride);
    for (int i = threadIdx.x; i < window; i += THREADS)
        a.window[(size_t)token * WINDOW + i] = a.step.window_pages[row] * RING + (first + i) % RING;
    for (int i = threadIdx.x; i < entries; i += THREADS)
        a.entries[(size_t)token * a.entries_stride + i] = page_of(a.step, POOL_HCA, row, i / a.entry_slots) * a.entry_slots + i % a.entry_slots;
    if (threadIdx.x != 0) return;
    a.lengths[0][token] = window;
    a.lengths[1][token] = min((position + 1) / a.ratios[0], a.top);
    a.lengths[2][token] = entries;
}

struct SelectedArgs {
    Step step;
    const int* selected;             // [tokens, stride]: entries of the row
    const int* lengths;              // [tokens]
    int* entries;                    // [tokens, stride]: the same in the pool
    int stride, slots;
};

// Grid: tokens.
extern "C" __global__ void __launch_bounds__(THREADS) selected(const __grid_constant__ SelectedArgs a) {
    begin_after_launch_before();
    const int token = blockIdx.x, row = a.step.row_of[token];
    for (int i = threadIdx.x; i < a.lengths[token]; i += THREADS) {
        const int index = a.selected[(size_t)token * a.stride + i];
        a.entries[(size_t)token * a.stride + i] = page_of(a.step, POOL_CSA, row, index / a.slots) * a.slots + index % a.slots;
    }
}

struct HeadsArgs {
    Step step;
    float* numbers;                  // [tokens, heads, 512]
    u16* rounded;                    // the same in bf16
    float* spoilt;                   // [tokens, heads]: 0, or NaN of a query that is no number
    int heads, compressed;
    float rms_eps;
    int unused;
};

// A lane has dims 4 lane .. + 3 of every 128: of the last, the upper half of a warp has the rotary ones.
__device__ __forceinline__ void rotate(const HeadsArgs& a, float (&four)[4], int token, int lane, float direction) {
    if (lane < 16) return;
    const int pair = 2 * (lane - 16);
    const float* rotation = rotation_of(a.step, token, a.compressed);
    rotate_pair(four, 0, rotation[pair], rotation[32 + pair], direction);
    rotate_pair(four, 1, rotation[pair + 1], rotation[32 + pair + 1], direction);
}

// Grid: heads over HEADS, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) queries(const __grid_constant__ HeadsArgs a) {
    begin_after_launch_before();
    const int head = blockIdx.x * HEADS + threadIdx.x / 32, token = blockIdx.y, lane = threadIdx.x % 32;
    if (head >= a.heads) return;
    const size_t at = ((size_t)token * a.heads + head) * HEAD_DIM;
    float q[4][4], squares = 0.f;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 four = *(const float4*)(a.numbers + at + i * 128 + lane * 4);
        q[i][0] = four.x; q[i][1] = four.y; q[i][2] = four.z; q[i][3] = four.w;
        #pragma unroll
        for (int d = 0; d < 4; d++) squares = fmaf(q[i][d], q[i][d], squares);
    }
    squares = warp_sum(squares);
    const float inverse = 1.f / sqrtf(squares / HEAD_DIM + a.rms_eps);
    if (lane == 0) a.spoilt[(size_t)token * a.heads + head] = squares * 0.f;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        #pragma unroll
        for (int d = 0; d < 4; d++) q[i][d] *= inverse;
        if (i == 3) rotate(a, q[i], token, lane, 1.f);
        *(uint2*)(a.rounded + at + i * 128 + lane * 4) = make_uint2(bf16x2_of(q[i][0], q[i][1]), bf16x2_of(q[i][2], q[i][3]));
    }
}

// Grid: heads over HEADS, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) answers(const __grid_constant__ HeadsArgs a) {
    begin_after_launch_before();
    const int head = blockIdx.x * HEADS + threadIdx.x / 32, token = blockIdx.y, lane = threadIdx.x % 32;
    if (head >= a.heads) return;
    const size_t at = ((size_t)token * a.heads + head) * HEAD_DIM;
    const float spoilt = a.spoilt[(size_t)token * a.heads + head];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint2 two = *(const uint2*)(a.rounded + at + i * 128 + lane * 4);
        float x[4] = {low_bf16(two.x), high_bf16(two.x), low_bf16(two.y), high_bf16(two.y)};
        if (i == 3) rotate(a, x, token, lane, -1.f);
        *(float4*)(a.numbers + at + i * 128 + lane * 4) = make_float4(x[0] + spoilt, x[1] + spoilt, x[2] + spoilt, x[3] + spoilt);
    }
}
