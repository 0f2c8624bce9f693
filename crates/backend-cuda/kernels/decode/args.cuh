// What every version of the decode kernel is given, and the arithmetic all of them share.
// The Rust side mirrors `Args` field by field (src/decode/args.rs): change both.
//
// A row is one query token of one request. It attends to two lists of cache entries, the window's and the compressed
// one's, each with its own paged pool. A page of P entries is P x 576 bytes (448 E4M3, then 64 BF16), then P x 8
// bytes (7 UE8M0 exponents of 64 values each, 1 unused). An entry's key and value are the same 512 numbers.
#pragma once
#include "types.cuh"

constexpr int HEAD_DIMS = 512, NOPE_DIMS = 448, ENTRY_BYTES = 576, SCALE_BYTES = 8, GROUPS = 7;

struct Pool {
    const u8* data;      // pages; a multiple of 16 bytes in address and size
    const int* index;    // [rows, index_stride]: page * page_entries + slot; below 0 or at least `entries`: masked
    const int* length;   // [rows], or null: every row uses the whole capacity
    i64 page_bytes;
    int page_entries, entries, index_stride, capacity;
};

// What one worker of a persistent launch does: from tile `first_tile` of row `first` to before tile `last_end` of row
// `last`; rows between are whole. Nothing when `first` is behind `last`. Made by schedule.cu.
struct Run {
    int first, first_tile, last, last_end;
    int part;                            // which of the parts of row `first` this worker has
    int parts_first, parts_last;         // parts of rows `first` and `last`; of the latter this worker has the first
    int first_window, first_extra;       // lengths of row `first`: one wait for memory less before the first copy
    int unused[3];
};

struct Args {
    const u16* q;        // bf16 [rows, heads, 512], rows q_stride apart
    u16* out;            // bf16 [rows, heads, 512], rows out_stride apart
    const float* sink;   // [heads], natural logarithm, may be -inf
    float* partial;      // [rows, splits, heads, 512], unused when splits is 1; [workers, 2, heads, 512] in version 7
    float* partial_log;  // [rows, splits, heads]: log2 of each part's sum of exponentials; [workers, 2, heads]
    int* arrivals;       // [rows or workers, head blocks], zero before the first launch; every launch leaves it zero
    const Run* runs;     // [workers], version 7 only
    Pool window, extra;
    i64 q_stride, out_stride;
    int rows, heads;
    int splits;          // blocks a row; workers in version 7
    float scale_log2;    // softmax scale times log2(e)
};

// The tiles of one row, dealt to `splits` blocks in runs. A tile never mixes the two lists.
struct Share {
    int window_length, extra_length;   // entries
    int window_tiles;
    int first, count;                  // this block's run of tiles
    int active;                        // blocks of this row that have a run (at least 1)
};

__device__ __forceinline__ int list_length(const Pool& pool, int row) {
    int length = pool.length ? __ldg(pool.length + row) : pool.capacity;
    return min(max(length, 0), pool.capacity);
}

__device__ __forceinline__ Share share_of(const Args& a, int row, int split, int tile) {
    Share s;
    s.window_length = list_length(a.window, row);
    s.extra_length = list_length(a.extra, row);
    s.window_tiles = (s.window_length + tile - 1) / tile;
    const int tiles = s.window_tiles + (s.extra_length + tile - 1) / tile;
    const int each = max((tiles + a.splits - 1) / a.splits, 1);
    s.active = max((tiles + each - 1) / each, 1);
    s.first = split * each;
    s.count = max(min(each, tiles - s.first), 0);
    return s;
}

// The raw index at `at` of a list, -1 behind its end. `is_entry` looks at it when it is used, not here: a comparison
// beside the load would make the warp wait for memory.
__device__ __forceinline__ int index_of(const Pool& pool, int row, int at, int length) {
    int index = -1;
    if (at < length) index = __ldg(pool.index + (i64)row * pool.index_stride + at);
    return index;
}

__device__ __forceinline__ bool is_entry(const Pool& pool, int index) { return (u32)index < (u32)pool.entries; }
