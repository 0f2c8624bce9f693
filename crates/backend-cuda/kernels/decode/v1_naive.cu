// Version 1: what is to be computed, in the order in which one would say it. A block is one head of one row; a warp is
// one entry for the scores, a thread is two dims for the values; scores lie in shared memory, float32
// throughout. The oracle of nothing (that is the float64 reference on the host), but the first kernel to pass it.
//
// For 64 heads and 640 entries: every head reads all entries twice, 64 x 2 x 374 kB = 48 MB a row against the
// 505 kB that must move, from L2 mostly; 84 MFLOP by FMA at 67 TFLOP/s (H200) are 1.3 us a row at best.
//
// Shared memory: 4 bytes an entry of a chunk of 1,024; longer lists go chunk by chunk with a running maximum.
// Taught (H200, 16 heads, 640 entries): 430 us for 1 row, 3,720 us for 256: every head of every row reads and converts
// its entries twice, byte by byte.
#include "merge.cuh"

constexpr int THREADS = 256, CHUNK = 1024;

struct Entry {
    const u8* data;
    const u8* scales;
};

__device__ Entry find(const Pool& pool, int entry) {
    const u32 page = (u32)entry / (u32)pool.page_entries, slot = (u32)entry % (u32)pool.page_entries;
    const u8* start = pool.data + page * pool.page_bytes;
    return {start + slot * ENTRY_BYTES, start + pool.page_entries * ENTRY_BYTES + slot * SCALE_BYTES};
}

__device__ float number(const Entry& e, int dim) {
    if (dim < NOPE_DIMS) return float_of_e4m3(e.data[dim]) * float_of_ue8m0(e.scales[dim / 64]);
    return float_of_bf16(((const u16*)(e.data + NOPE_DIMS))[dim - NOPE_DIMS]);
}

extern "C" __global__ void __launch_bounds__(THREADS) decode(const Args a) {
    __shared__ float weight[CHUNK];
    __shared__ int entry[CHUNK];
    __shared__ float reduced[THREADS / 32];
    const int head = blockIdx.y, row = blockIdx.z, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u16* q = a.q + (i64)row * a.q_stride + head * HEAD_DIMS;
    const int window = list_length(a.window, row), total = window + list_length(a.extra, row);
    float maximum = NOTHING, sum = 0.f, out[2] = {0.f, 0.f};

    for (int start = 0; start < total; start += CHUNK) {
        const int n = min(CHUNK, total - start);
        float largest = NOTHING;
        for (int i = warp; i < n; i += THREADS / 32) {
            const int at = start + i;
            const bool extra = at >= window;
            const Pool& pool = extra ? a.extra : a.window;
            int found = extra ? index_of(pool, row, at - window, total - window) : index_of(pool, row, at, window);
            float score = 2 * NOTHING;
            if (!is_entry(pool, found)) {
                found = -1;
            } else {
                const Entry e = find(pool, found);
                float dot = 0.f;
                for (int dim = lane; dim < HEAD_DIMS; dim += 32) dot += float_of_bf16(q[dim]) * number(e, dim);
                for (int bit = 16; bit; bit /= 2) dot += __shfl_xor_sync(~0u, dot, bit);
                score = fmaxf(fminf(dot * a.scale_log2, 5e29f), -5e29f);
            }
            largest = fmaxf(largest, score);
            if (lane == 0) {
                weight[i] = score;
                entry[i] = found;
            }
        }
        if (lane == 0) reduced[warp] = largest;
        __syncthreads();
        for (int i = 0; i < THREADS / 32; i++) largest = fmaxf(largest, reduced[i]);
        const float next = fmaxf(maximum, largest), growth = exp2_approx(maximum - next);
        maximum = next;
        sum *= growth;
        out[0] *= growth;
        out[1] *= growth;
        for (int i = 0; i < n; i++) {
            if (entry[i] < 0) continue;
            const float p = exp2_approx(weight[i] - maximum);
            const Entry e = find(start + i >= window ? a.extra : a.window, entry[i]);
            sum += p;
            for (int d = 0; d < 2; d++) out[d] += p * number(e, threadIdx.x * 2 + d);
        }
        __syncthreads();
    }
    const float log = sum > 0.f ? maximum + __log2f(sum) : NOTHING;
    const float scale = sum > 0.f ? share_beside_sink(log, a.sink[head]) / sum : 0.f;
    ((u32*)(a.out + (i64)row * a.out_stride + head * HEAD_DIMS))[threadIdx.x] = bf16x2_of(out[0] * scale, out[1] * scale);
}
