// The best entries of each token by their scores, version 2: exact, of equal scores the lower entries, ascending.
//
// The key of the last one chosen is found by its bits, 11, 11 and 10 at a time: the first histogram reads all scores; the keys in
// the bin where the last one must lie then fit shared memory but for ties by the thousand, and the other two read those. A third
// pass collects, 1,024 entries at a time, in the order of entries: a sum over the block places them.
//
// 16,384 scores, a token: 3 x 64 kB from L2. Shared memory: 24,656 bytes at any length. 1,024 tokens of 16,384 entries
// take 115 us on an H200.
#include "index.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, BINS = 2048, KEPT_MAX = 4096, EACH = 4;

// The sum of `x` over the threads before this one; all threads get the total. `parts` is for this call alone until the next barrier.
__device__ __forceinline__ u32 sum_before(u32 x, u32 (&parts)[WARPS], u32& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = x;
    #pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == 31) parts[warp] = sum;
    __syncthreads();
    u32 before = 0;
    total = 0;
    #pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += parts[w];
        total += parts[w];
    }
    return before + sum - x;
}

// Which bin, from the highest on, holds number `rest`; and which number of it that is.
struct Found {
    int bin, rest, count;
};
__device__ __forceinline__ Found find(const int (&histogram)[BINS], int rest, u32 (&parts)[WARPS], Found& found) {
    const int highest = BINS - 1 - threadIdx.x * (BINS / THREADS);
    u32 own = 0, total;
    for (int i = 0; i < BINS / THREADS; i++) own += histogram[highest - i];
    int before = (int)sum_before(own, parts, total);
    if (before < rest && before + (int)own >= rest)
        for (int i = 0; i < BINS / THREADS; i++) {
            const int count = histogram[highest - i];
            if (before + count >= rest) {
                found = {highest - i, rest - before, count};
                break;
            }
            before += count;
        }
    __syncthreads();
    return found;
}

__device__ __forceinline__ void clear(int (&histogram)[BINS]) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) histogram[i] = 0;
    __syncthreads();
}

// Grid: tokens.
extern "C" __global__ void __launch_bounds__(THREADS) index_select(const __grid_constant__ IndexArgs a) {
    begin_after_launch_before();
    __shared__ int histogram[BINS], kept_count;
    __shared__ u32 kept[KEPT_MAX], parts[2][WARPS];
    __shared__ Found found;
    const int token = a.first + blockIdx.x, tid = threadIdx.x, visible = visible_of(a.step, token);
    int* out = a.selected + (size_t)token * a.top;
    if (tid == 0) a.counts[token] = min(visible, a.top);
    if (visible <= a.top) {
        for (int i = tid; i < visible; i += THREADS) out[i] = i;
        return;
    }
    const float* scores = a.scores + (size_t)blockIdx.x * a.score_stride;
    if (tid == 0) kept_count = 0;
    clear(histogram);
    for (int i = tid; i < visible; i += THREADS) atomicAdd(&histogram[ordered_bits(scores[i]) >> 21], 1);
    __syncthreads();
    Found at = find(histogram, a.top, parts[0], found);
    u32 last = (u32)at.bin << 21;                               // of the key of the last one chosen, as far as it is known
    const bool fits = at.count <= KEPT_MAX;
    if (fits)
        for (int i = tid; i < visible; i += THREADS) {
            const u32 key = ordered_bits(scores[i]);
            if (key >> 21 == (u32)at.bin) kept[atomicAdd(&kept_count, 1)] = key;
        }
    #pragma unroll 1
    for (int round = 0; round < 2; round++) {
        const int known = round ? 10 : 21, shift = round ? 0 : 10, mask = round ? 1023 : 2047;
        clear(histogram);
        for (int i = tid; i < (fits ? kept_count : visible); i += THREADS) {
            const u32 key = fits ? kept[i] : ordered_bits(scores[i]);
            if (key >> known == last >> known) atomicAdd(&histogram[key >> shift & mask], 1);
        }
        __syncthreads();
        at = find(histogram, at.rest, parts[1 - round], found);
        last |= (u32)at.bin << shift;
    }

    // `at.rest` of those whose key is `last` are chosen: the first ones. Both counts in one number, a strip's being small.
    int above = 0, equal = 0;
    for (int start = 0; start < visible; start += THREADS * EACH) {
        u32 keys[EACH], own = 0, total;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int entry = start + tid * EACH + i;
            keys[i] = entry < visible ? ordered_bits(scores[entry]) : 0;
            own += keys[i] > last ? 1 : keys[i] == last && entry < visible ? 1 << 16 : 0;
        }
        const u32 before = sum_before(own, parts[start / (THREADS * EACH) % 2], total);
        int above_before = above + (before & 0xffff), equal_before = equal + (before >> 16);
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int entry = start + tid * EACH + i, place = above_before + min(equal_before, at.rest);
            if (entry >= visible) break;
            if (keys[i] > last) {
                out[place] = entry;
                above_before++;
            } else if (keys[i] == last) {
                if (equal_before < at.rest) out[place] = entry;
                equal_before++;
            }
        }
        above += total & 0xffff;
        equal += total >> 16;
    }
}
