// The matmul family: what its kernels are given. Mirrored field by field by src/matmul/args.rs: change both.
//
// y[token, row] = sum over columns of x[token, col] W[row, col], weights as they are stored, row major, nothing repacked.
//
//   prepare.cu   float32 activations -> *prepared* ones, with the publisher's E4M3 rounding if asked
//   dense        up to 16 products of the same tokens in one launch, with each matrix its own format, input and output
//   sort.cu      a step's choices of experts -> slots (a token with one of its experts), sorted by expert, and tiles of them
//   experts      up: silu(w1 x) * (w3 x) * weight for each slot; down: w2 of that. The shared expert rides along
//   combine      a token's slots added up in the order of its choices
//
// FP8 and FP4 matrices take *codes*: f16, of each 8 columns the even ones first (0 2 4 6 1 3 5 7), which is how FP4 comes out of its
// bytes, and a power of two for each 128 columns. What the publisher rounds to E4M3 is one such term; two have the 22 bits and a
// sign that float32 arithmetic has use for. BF16 and F32 matrices take *floats*: three bf16 terms in plain order, whose sum is the
// float32 number. Sums are float32 everywhere.
//
// A row's sums are made in an order that depends on the matrix, the device (`splits`) and WARP_COLS alone: a token gives the same
// bits in any company of kernels that have that in common.
#pragma once
#include "matrix.cuh"

// Activations [rows, cols] as matrices take them. Either form may be missing.
struct Prepared {
    u16* codes;                          // [terms, rows, cols]
    float* scales;                       // [rows, cols / 128 rounded up]
    u16* floats;                         // [3, rows, cols]
    i64 term_stride;                     // rows * cols
    int cols;
    int terms;                           // of codes: 1 or 2
};

// out[token, 0..rows] = W in[token, first_col..]; `out_stride` counts numbers.
struct Job {
    Matrix matrix;
    Prepared in;
    float* out;
    i64 out_stride;
    int first_col;                       // a multiple of 128
    int blocks_before;                   // blocks of the jobs before
    int splits;                          // blocks that share the columns of a tile of rows
    int split_bytes;                     // of a row, for each of them: a multiple of 512, which all variants' stages divide
    int parts_before;                    // parts of the jobs before, jobs with one split having none
    int unused;
};

constexpr int JOBS_MAX = 16;

struct DenseArgs {
    Job jobs[JOBS_MAX];
    float* partial;                      // [token tiles, parts, rows of a tile, tokens of a tile]
    int* arrivals;                       // [token tiles, parts], zero before the first launch; every launch leaves it zero
    int count;
    int first, tokens;                   // of the inputs and outputs
    int parts;
};

struct PrepareArgs {
    const float* in;                     // [rows, in_stride]
    Prepared out;
    i64 in_stride;
    int rows;
    int round_to_e4m3;                   // blocks of 128 columns share a power of two
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
    Prepared x;                          // [tokens, hidden]
    Prepared inner;                      // [slots, width]: `down` reads
    float* inner_exact;                  // [slots, width]: `up` writes, and `prepare` comes between
    float* products;                     // [slots, hidden]
    int hidden, width;
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
