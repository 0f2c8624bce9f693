// The matmul family: what its kernels are given. Mirrored field by field by src/matmul/args.rs: change both.
//
// y[token, row] = sum over columns of x[token, col] W[row, col], weights as they are stored, row major, nothing repacked.
//
//   prepare.cu   float32 or bf16 activations -> *prepared* ones, with the publisher's E4M3 rounding if asked
//   dense        up to 16 products of the same tokens in one launch, with each matrix its own format, input and output
//   sort.cu      a step's choices of experts -> slots (a token with one of its experts), sorted by expert, and tiles of them
//   experts      up: silu(w1 x) * (w3 x) * weight for each slot; down: w2 of that. The shared expert rides along
//   combine      a token's slots added up in the order of its choices
//
// Inputs by the format of the matrix. FP8 and FP4 take prepared activations: bf16, of each 8 columns in the order 0 4 1 5 2 6
// 3 7, in which a stored word's bytes or nibbles come out 16 bits apart without a shuffle; and where nothing may be rounded,
// three such terms whose sum is the float32 number. BF16 and F32 take float32 in plain order, which the kernels split into
// three bf16 terms themselves. Three terms are as good as float32 arithmetic. Sums are float32 everywhere.
//
// A row's sums are made in an order that depends on the matrix and the device alone (`splits`), so that a token gives the
// same bits in any company.
#pragma once
#include "matrix.cuh"

// out[token, 0..rows] = W in[token, 0..cols]; strides count numbers, of float32 or of prepared bf16.
struct Job {
    Matrix matrix;
    const void* in;
    float* out;
    i64 in_stride, out_stride;
    i64 term_stride;                     // from each of three terms of the input to the next; 0: it is one
    int blocks_before;                   // blocks of the jobs before
    int splits;                          // blocks that share the columns of a tile of rows
    int parts_before;                    // parts of the jobs before, jobs with one split having none
    int unused;
};

constexpr int JOBS_MAX = 16;

struct DenseArgs {
    Job jobs[JOBS_MAX];
    float* partial;                      // [token tiles, parts, rows of a tile, tokens of a tile]
    int* arrivals;                       // [token tiles, parts], zero before the first launch; every launch leaves it zero
    int count, tokens, parts;
    int unused;
};

struct PrepareArgs {
    const void* in;                      // float32 or bf16 [rows, in_stride]
    u16* out;                            // prepared [terms, rows, cols]
    i64 in_stride;
    int rows, cols;
    int is_bf16;
    int round_to_e4m3;                   // blocks of 128 columns share a power of two
    int terms;                           // 1 or 3
    int unused;
};

struct Expert {
    Matrix w1, w3, w2;
};

// Slots `first .. first + count` belong to one expert.
struct Tile {
    int expert, first, count, unused;
};

struct SortArgs {
    const int* ids;                      // [tokens, per_token]: choices, ascending
    const float* weights;                // [tokens, per_token]
    int* token_of;                       // [slots]; slots = tokens * (per_token + 1), the last `tokens` the shared expert's
    float* weight_of;                    // [slots]
    int* slot_of;                        // [tokens, per_token]; -1 for an expert of another rank
    Tile* tiles;                         // the shared expert's, then those of the experts that have tokens
    int* tile_count;
    int tokens, per_token;
    int first_expert, count;             // of this rank
    int tile_tokens;
    int unused;
};

struct ExpertsArgs {
    const Expert* experts;               // [count + 1]: the shared one is the last
    const Tile* tiles;
    const int* tile_count;
    const int* token_of;
    const float* weight_of;
    const u16* x;                        // prepared [tokens, hidden], or three terms of it
    const float* x_exact;                // float32 [tokens, hidden], for experts in BF16 or F32
    u16* inner;                          // prepared [slots, width], or three terms: `up` writes, `down` reads, where w2 is FP8 or FP4
    float* inner_exact;                  // float32 [slots, width]: likewise where w2 is BF16 or F32, or `prepare` comes between
    float* products;                     // float32 [slots, hidden]
    i64 x_term_stride, inner_term_stride; // as of a job
    int hidden, width;
    int shared;                          // index of the shared expert in `experts`
    int inner_is_exact;                  // 1: `up` writes `inner_exact` whatever the format
    float limit;                         // of the activation; infinity: none
    int unused;
};

struct CombineArgs {
    const float* products;               // [slots, hidden]
    const int* slot_of;
    float* y;                            // [tokens, hidden]: the routed experts of this rank
    float* y_shared;                     // [tokens, hidden]: the shared one; null: added to `y`
    int tokens, per_token, hidden;
    int unused;
};

// Where column `i` of 8 stands in prepared activations.
__device__ __forceinline__ int prepared_place(int i) { return i < 4 ? 2 * i : 2 * i - 7; }
