// Deals the tiles of all rows to the workers of version 7, by the lengths that rows have on the device: once a step for
// each kind of layer, all layers of that kind use it. One block.
//
// A worker has a budget. It takes rows in order while the budget lasts, cuts the one that does not fit, and the next
// worker goes on there. What a row or part costs is its tiles and a fixed price for starting and ending it. The best
// budget is the smallest with which the workers suffice, unless longer rows would be cut into so many parts that adding
// them up costs more: each warp tries one budget, the best is dealt.
//
// Where a worker ends depends on where it began, so a warp goes from worker to worker one after the other; nothing else does.
// All it writes down is a place in the sum of all prices, and it reads that sum from its own registers. From the places of
// the best budget each thread finds by bisection what its worker does.
#include "args.cuh"

struct ScheduleArgs {
    const int* window_length;            // [rows] each, or null: every row uses the whole capacity
    const int* extra_length;
    Run* runs;                           // [workers]
    int window_capacity, extra_capacity, rows, workers, tile;
    int row_quarters, part_quarters;     // prices of a row, at least 1, and of each part of a cut row, in quarters of a tile
    int unused;
};

constexpr int WARPS = 16, THREADS = 32 * WARPS, WORKERS_MAX = 256, QUARTERS = 4;
constexpr int STEP = 2;                  // quarters from a budget to the next: while both prices together are up to 8, one suffices
constexpr int NEVER = 0x7fffffff;

__device__ __forceinline__ int length_of(const int* lengths, int row, int capacity) {
    return lengths ? min(max(__ldg(lengths + row), 0), capacity) : capacity;
}

__device__ __forceinline__ int price_of(const ScheduleArgs& a, int row) {
    const int window = length_of(a.window_length, row, a.window_capacity), extra = length_of(a.extra_length, row, a.extra_capacity);
    return ((window + a.tile - 1) / a.tile + (extra + a.tile - 1) / a.tile) * QUARTERS + a.row_quarters;
}

// before[row] becomes the price of all rows before, up to and with before[rows]. Returns that of all.
__device__ __forceinline__ int sum_prices(const ScheduleArgs& a, int* before, int* sums) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) before[0] = 0;
    int carry = 0;
    for (int start = 0; start < a.rows; start += THREADS) {
        const int row = start + threadIdx.x;
        int price = row < a.rows ? price_of(a, row) : 0;
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(~0u, price, by);
            if (lane >= by) price += other;
        }
        if (lane == 31) sums[warp] = price;
        __syncthreads();
        price += carry;
        for (int other = 0; other < WARPS; other++) {
            if (other < warp) price += sums[other];
            carry += sums[other];
        }
        if (row < a.rows) before[row + 1] = price;
        __syncthreads();
    }
    return carry;
}

// Where each worker ends with this budget: before a row, or behind the price of a row and some of its tiles.
// Returns the most parts of a row, or 0 when the workers do not suffice.
__device__ __forceinline__ int deal(const ScheduleArgs& a, const int* before, int budget, int* ends) {
    const int lane = threadIdx.x & 31, part_price = a.row_quarters + a.part_quarters;
    const int between = (budget - part_price) & -QUARTERS;      // what a worker takes of a row that others begin and end
    auto sums_from = [&](int row) { return row + lane <= a.rows ? before[row + lane] : NEVER; };
    int base = 0, held = sums_from(0);                          // before[base + lane]
    int row = 0, sum = 0, at = 0, parts = 1, most = 1;          // before[row], and what is dealt of its tiles in so many parts
    for (int worker = 0; worker < a.workers; worker++) {
        const int limit = sum + budget + (at > 0 ? at - a.part_quarters : 0);
        int fit = __popc(__ballot_sync(~0u, held <= limit));
        while (fit == 32) {                                     // the last that is held fits, and is held again as the first
            held = sums_from(base += 31);
            fit = __popc(__ballot_sync(~0u, held <= limit));
        }
        const int reached = base + fit - 1;
        const bool within = at > 0 && reached == row;           // neither begins nor ends the row
        if (at > 0) most = max(most, ++parts);
        if (!within) parts = 1;
        row = reached;
        sum = __shfl_sync(~0u, held, fit - 1);
        const int left = limit - sum - part_price;
        at = within ? at + between : row < a.rows && left >= QUARTERS ? left & -QUARTERS : 0;
        ends[worker] = at > 0 ? sum + a.row_quarters + at : sum;   // all lanes say the same: to ask for one would be an instruction more
    }
    return row < a.rows ? 0 : most;
}

// How many of ascending numbers are below `value`.
__device__ __forceinline__ int count_below(const int* numbers, int count, int value) {
    int low = 0;
    while (low < count) {
        const int middle = (low + count) / 2;
        if (numbers[middle] < value) low = middle + 1;
        else count = middle;
    }
    return low;
}

// A row's parts are one more than the workers that end within it: those behind whom this one goes on, and those from it on.
__device__ __forceinline__ Run run_of(const ScheduleArgs& a, const int* before, const int* ends, int worker) {
    Run run = {0, 0, -1, 0, 0, 1, 1};
    const int begin = worker > 0 ? ends[worker - 1] : 0, end = ends[worker];
    if (begin < end) {
        run.first = count_below(before, a.rows + 1, begin + 1) - 1;
        run.last = count_below(before, a.rows + 1, end) - 1;
        run.first_tile = max(begin - before[run.first] - a.row_quarters, 0) / QUARTERS;
        run.last_end = (end - before[run.last] - a.row_quarters) / QUARTERS;
        while (run.part < worker && ends[worker - run.part - 1] > before[run.first]) run.part++;
        int open = worker;
        while (open < a.workers && ends[open] < before[run.last + 1]) open++;
        const bool alone = run.first == run.last;
        run.parts_last = 1 + open - worker + (alone ? run.part : 0);
        run.parts_first = alone ? run.parts_last : 1 + run.part;
    }
    run.first_window = length_of(a.window_length, run.first, a.window_capacity);
    run.first_extra = length_of(a.extra_length, run.first, a.extra_capacity);
    return run;
}

extern "C" __global__ void __launch_bounds__(THREADS) schedule(const __grid_constant__ ScheduleArgs a) {
    extern __shared__ __align__(128) u8 memory[];
    int* before = (int*)memory;                                 // [rows + 1]: as many as the launch has room for
    __shared__ int ends[WARPS][WORKERS_MAX], sums[WARPS], prices[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int all = sum_prices(a, before, sums);
    const int least = max((all + a.workers - 1) / a.workers, a.row_quarters + a.part_quarters + QUARTERS);
    const int budget = least + STEP * warp, parts = deal(a, before, budget, ends[warp]);
    // A row that is cut costs a tile at the end, and a twentieth for each part; a budget that does not suffice is out.
    if (lane == 0) prices[warp] = parts ? budget * 5 + (parts > 1 ? 5 * QUARTERS + parts : 0) : NEVER;
    __syncthreads();
    static_assert(WORKERS_MAX <= THREADS, "a thread reads off the run of a worker");
    if (threadIdx.x >= a.workers) return;
    int winner = 0;
    for (int other = 1; other < WARPS; other++)
        if (prices[other] < prices[winner]) winner = other;
    a.runs[threadIdx.x] = run_of(a, before, ends[winner], threadIdx.x);
}
