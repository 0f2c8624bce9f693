// How version 7 walks through its run: the tiles of a worker in order, from row to row. TILE entries each; a tile never
// mixes the two lists.
#pragma once
#include "args.cuh"
#include "device.cuh"

// Where a worker is in its run: the next tile to place, or none when `row` is behind the last.
struct Cursor {
    int row, tile, end;                  // tiles of this row: the next, and before which to stop
    int window_length, extra_length;

    __device__ __forceinline__ void start(const Args& a, const Run& run, int at) {
        row = at;
        window_length = row == run.first ? run.first_window : list_length(a.window, row);
        extra_length = row == run.first ? run.first_extra : list_length(a.extra, row);
        tile = row == run.first ? run.first_tile : 0;
        end = row == run.last ? run.last_end : window_tiles() + (extra_length + TILE - 1) / TILE;
    }
    // `by` tiles on, over the ends of rows.
    __device__ __forceinline__ void advance(const Args& a, const Run& run, int by) {
        tile += by;
        while (tile >= end && row <= run.last) {
            const int beyond = tile - end;
            if (row == run.last) row++;
            else start(a, run, row + 1);
            tile += beyond;
        }
    }
    __device__ __forceinline__ int window_tiles() const { return (window_length + TILE - 1) / TILE; }
    __device__ __forceinline__ bool in_window() const { return tile < window_tiles(); }
    // The raw index of the tile's entry `own`.
    __device__ __forceinline__ int index(const Args& a, const Run& run, int own) const {
        if (row > run.last) return -1;
        return in_window() ? index_of(a.window, row, tile * TILE + own, window_length)
                           : index_of(a.extra, row, (tile - window_tiles()) * TILE + own, extra_length);
    }
    __device__ __forceinline__ void save(u32 at) const {
        store_shared_16(at, row, tile, end, window_length);
        store_shared_u32(at + 16, extra_length);
    }
    __device__ __forceinline__ void restore(u32 at) {
        const uint4 v = load_shared_16(at);
        row = v.x; tile = v.y; end = v.z; window_length = v.w;
        extra_length = load_shared_u32(at + 16);
    }
};
