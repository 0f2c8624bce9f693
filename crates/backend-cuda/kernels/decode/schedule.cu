// Deals the tiles of all rows to the workers of version 7, by the lengths that rows have on the device: once a step for
// each kind of layer, all layers of that kind use it. One block.
//
// A worker has a budget. It takes rows in order while the budget lasts, cuts the one that does not fit, and the next
// worker goes on there. What a row or part costs is its tiles and a fixed price for starting and ending it. The best
// budget is the smallest with which the workers suffice, unless longer rows would be cut into so many parts that adding
// them up costs more: each warp tries one budget, the best is dealt.
#include "args.cuh"

struct ScheduleArgs {
    const int* window_length;            // [rows] each, or null: every row uses the whole capacity
    const int* extra_length;
    Run* runs;                           // [workers]
    int window_capacity, extra_capacity, rows, workers, tile;
    int row_quarters, part_quarters;     // prices of a row and of each part of a cut row, in quarters of a tile
    int unused;
};

__device__ __forceinline__ int length_of(const int* lengths, int row, int capacity) {
    return lengths ? min(max(lengths[row], 0), capacity) : capacity;
}

constexpr int WARPS = 16, THREADS = 32 * WARPS, ROWS_MAX = 8192, WORKERS_MAX = 256, QUARTERS = 4;
constexpr int STEP = 2;                  // quarters from a budget to the next: while both prices together are up to 8, one suffices

// Deals with one budget and calls `part(worker, row, first_tile, end_tile, number)` for every row or part of one that
// a worker begins or ends with; whole rows between are told as their last. `before[row]` is the cost of all rows before.
// Returns the most parts of a row, or 0 when the workers do not suffice.
template <typename Part>
__device__ __forceinline__ int deal(const ScheduleArgs& a, const int* before, int budget, Part part) {
    const int part_price = a.row_quarters + a.part_quarters, lane = threadIdx.x & 31;
    auto tiles_of = [&](int row) { return (before[row + 1] - before[row] - a.row_quarters) / QUARTERS; };
    int row = 0, at = 0, number = 0, most = 1;                  // tile `at` of `row`, cut into `number` parts so far
    for (int worker = 0; worker < a.workers && row < a.rows; worker++) {
        int left = budget;
        if (at > 0) {
            const int count = tiles_of(row), end = min(count, at + (left - part_price) / QUARTERS);
            part(worker, row, at, end, number++);
            left -= part_price + (end - at) * QUARTERS;
            at = end;
            if (at < count) continue;
            most = max(most, number);
            at = 0;
            row++;
        }
        const int limit = before[row] + left, first = row;
        for (int fit = 32; fit == 32; row += fit)
            fit = __popc(__ballot_sync(~0u, row + 1 + lane <= a.rows && before[min(row + 1 + lane, a.rows)] <= limit));
        if (row > first) {
            part(worker, first, 0, tiles_of(first), 0);
            part(worker, row - 1, 0, tiles_of(row - 1), 0);
        }
        const int take = (limit - before[row] - part_price) / QUARTERS;
        if (row == a.rows || limit - before[row] < part_price + QUARTERS) continue;
        part(worker, row, 0, take, 0);
        at = take;
        number = 1;
    }
    return row < a.rows ? 0 : most;
}

extern "C" __global__ void __launch_bounds__(THREADS) schedule(const ScheduleArgs a) {
    __shared__ int before[ROWS_MAX + 1];
    __shared__ Run runs[WORKERS_MAX];
    __shared__ int sums[WARPS], prices[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    static_assert(WORKERS_MAX <= THREADS, "a thread clears a run");
    if (threadIdx.x < WORKERS_MAX) runs[threadIdx.x] = {0, 0, -1, 0, 0, 1, 1};
    int carry = 0;
    for (int start = 0; start < a.rows; start += THREADS) {
        const int row = start + threadIdx.x;
        int cost = 0;
        if (row < a.rows) {
            const int window = length_of(a.window_length, row, a.window_capacity), extra = length_of(a.extra_length, row, a.extra_capacity);
            cost = ((window + a.tile - 1) / a.tile + (extra + a.tile - 1) / a.tile) * QUARTERS + a.row_quarters;
        }
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(~0u, cost, by);
            if (lane >= by) cost += other;
        }
        if (lane == 31) sums[warp] = cost;
        __syncthreads();
        int total = 0;
        for (int other = 0; other < WARPS; other++) {
            if (other == warp) cost += carry + total;
            total += sums[other];
        }
        carry += total;
        if (row < a.rows) before[row + 1] = cost;
        __syncthreads();
    }
    if (threadIdx.x == 0) before[0] = 0;
    __syncthreads();
    const int least = max((carry + a.workers - 1) / a.workers, a.row_quarters + a.part_quarters + QUARTERS);
    const int parts = deal(a, before, least + STEP * warp, [](int, int, int, int, int) {});
    // A row that is cut costs a tile at the end, and a twentieth for each part; a budget that does not suffice is out.
    if (lane == 0) prices[warp] = parts ? (least + STEP * warp) * 5 + (parts > 1 ? 5 * QUARTERS + parts : 0) : 0x7fffffff;
    __syncthreads();
    if (warp == 0) {
        const int price = lane < WARPS ? prices[lane] : 0x7fffffff, best = __reduce_min_sync(~0u, price);
        const int winner = __ffs(__ballot_sync(~0u, price == best)) - 1;
        int open = 0;                    // the worker that has the first part of the row being cut
        deal(a, before, least + STEP * winner, [&](int worker, int row, int first_tile, int end_tile, int number) {
            Run& run = runs[worker];
            if (number == 0) open = worker;
            if (lane == 0) {
                if (run.first > run.last) {
                    run.first = row;
                    run.first_tile = first_tile;
                    run.part = number;
                }
                run.last = row;
                run.last_end = end_tile;
                run.parts_last = 1;
            }
            __syncwarp();
            if (number == 0 || end_tile * QUARTERS < before[row + 1] - before[row] - a.row_quarters) return;
            for (int other = open + lane; other <= worker; other += 32) {   // the last part: now all learn how many there are
                if (runs[other].first == row) runs[other].parts_first = number + 1;
                if (runs[other].last == row) runs[other].parts_last = number + 1;
            }
            __syncwarp();
        });
    }
    __syncthreads();
    if (threadIdx.x >= a.workers) return;
    Run run = runs[threadIdx.x];
    run.first_window = length_of(a.window_length, run.first, a.window_capacity);
    run.first_extra = length_of(a.extra_length, run.first, a.extra_capacity);
    a.runs[threadIdx.x] = run;
}
