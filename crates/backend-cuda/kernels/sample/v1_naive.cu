// Drawing a token from a row's logits: the rule of crates/backend/src/sample.rs, step by step, a block a row.
// Version 1: a whole bitonic sort wherever the likeliest tokens are asked for (153 passes over 129,280 tokens).
//
// The same random number meets the same order of tokens as on the host. What may differ: `expf` in its last place, and sums
// of weights, which are made of one run of tokens a thread here (float64, a relative 1e-16): a draw changes only where
// the random number falls between two tokens as closely as that. Log probabilities may differ in their last place.
#include "device.cuh"

constexpr int THREADS = 256, TOP_MAX = 128;

enum Status : int { DRAWN, BAD_LOGIT, NO_FINITE_LOGIT, NOTHING_ALLOWED };

// Mirrored by src/backend/sampling.rs, as the next struct: change both.
struct Draw {
    const float* logits;             // [vocab]
    const u32* seen;                 // [seen_count, 2]: token, times in the output
    const u32* bias;                 // [bias_count, 2]: token, bits of the float to add
    const u64* mask;                 // a bit a token, or null
    u64 seed;
    i64 position;
    int seen_count, bias_count;
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    int top_k, top_logprobs;
};

struct Drawn {
    int status;
    u32 token;                       // or the one whose logit is bad
    float logprob;                   // or that logit
    int top_count;
    u32 top[TOP_MAX];
    float top_logprobs[TOP_MAX];
};

struct SampleArgs {
    const Draw* draws;               // [rows]
    Drawn* drawn;                    // [rows]
    float* adjusted;                 // [rows, vocab]
    u64* order;                      // [rows, padded]
    int vocab, padded;               // the power of two that has room for the vocabulary
};

// A number for the whole block that `combine` makes of all threads' own. The order is that of threads.
template <typename T, typename Combine> __device__ T block_reduce(T own, T (&parts)[THREADS], Combine combine) {
    __syncthreads();
    parts[threadIdx.x] = own;
    __syncthreads();
    for (int half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] = combine(parts[threadIdx.x], parts[threadIdx.x + half]);
        __syncthreads();
    }
    return parts[0];
}

// Descending logits as ascending keys, tokens ascending where they are equal; both zeros are.
__device__ __forceinline__ u64 sort_key(float logit, int token) { return (u64)~ordered_bits(logit + 0.f) << 32 | (u32)token; }

// The largest logit's key; tokens whose logit is -inf or NaN are passed over.
__device__ u64 likeliest(const float* logits, int vocab, u64 (&parts)[THREADS]) {
    u64 best = ~0ull;
    for (int i = threadIdx.x; i < vocab; i += THREADS)
        if (logits[i] > __uint_as_float(0xff800000u)) best = min(best, sort_key(logits[i], i));
    return block_reduce(best, parts, [](u64 a, u64 b) { return min(a, b); });
}

__device__ void sort(const float* logits, u64* order, int vocab, int padded) {
    __syncthreads();
    for (int i = threadIdx.x; i < padded; i += THREADS) order[i] = i < vocab ? sort_key(logits[i], i) : ~0ull;
    __syncthreads();
    for (int size = 2; size <= padded; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            for (int i = threadIdx.x; i < padded; i += THREADS) {
                const int other = i ^ step;
                if (other < i) continue;
                const u64 a = order[i], b = order[other];
                if ((a > b) == ((i & size) == 0)) {
                    order[i] = b;
                    order[other] = a;
                }
            }
            __syncthreads();
        }
}

// Tokens still in play: the first `count` of `order`, or of all in the order of their ids; those lighter than `least` are
// out.
struct Kept {
    const float* logits;
    const u64* order;                // null: all tokens
    int count;
    float most, temperature;
    double least;
    __device__ int token(int i) const { return order ? (int)(u32)order[i] : i; }
    __device__ double weight(int i) const {
        const double w = (double)expf((logits[token(i)] - most) / temperature);
        return w >= least ? w : 0.0;
    }
};

// The first place at which the sum of weights is beyond `share` of all (or reaches it: `inclusive`), counting only tokens
// that weigh something; the last such place when rounding leaves none; -1 when nothing weighs anything.
__device__ int place_of_share(const Kept& kept, double share, bool inclusive, double (&runs)[THREADS], int (&found)[2]) {
    const int each = (kept.count + THREADS - 1) / THREADS, first = min(threadIdx.x * each, (unsigned)kept.count), end = min(first + each, kept.count);
    double own = 0.0;
    for (int i = first; i < end; i++) own += kept.weight(i);
    __syncthreads();
    runs[threadIdx.x] = own;
    if (threadIdx.x == 0) {
        found[0] = 0x7fffffff;
        found[1] = -1;
    }
    __syncthreads();
    double before = 0.0, total = 0.0;
    for (int t = 0; t < THREADS; t++) {
        if (t == threadIdx.x) before = total;
        total += runs[t];
    }
    const double target = share * total;
    if (before + own >= target || threadIdx.x == THREADS - 1) {
        double sum = before;
        for (int i = first; i < end; i++) {
            const double weight = kept.weight(i);
            if (weight <= 0.0) continue;
            sum += weight;
            if (inclusive ? sum >= target : sum > target) {
                atomicMin(&found[0], i);
                break;
            }
        }
    }
    for (int i = end - 1; i >= first; i--)
        if (kept.weight(i) > 0.0) {
            atomicMax(&found[1], i);
            break;
        }
    __syncthreads();
    return found[0] < kept.count ? found[0] : found[1];
}

__device__ __forceinline__ u64 splitmix64(u64 x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
__device__ __forceinline__ double uniform(u64 seed, i64 position) {
    return (double)(splitmix64(seed ^ splitmix64((u64)position)) >> 11) * 0x1p-53;
}

// Penalties, then bias, then the mask, into `adjusted`.
__device__ void adjust(const Draw& d, float* adjusted, int vocab) {
    for (int i = threadIdx.x; i < vocab; i += THREADS) adjusted[i] = d.logits[i];
    __syncthreads();
    for (int i = threadIdx.x; i < d.seen_count; i += THREADS) {
        const u32 token = d.seen[2 * i], times = d.seen[2 * i + 1];
        float x = adjusted[token];
        x = x > 0.f ? x / d.repetition : x * d.repetition;
        x = __fsub_rn(x, __fmul_rn(d.frequency, (float)times));
        x = __fsub_rn(x, times ? d.presence : 0.f);
        adjusted[token] = fminf(x, 3.40282347e38f);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 0; i < d.bias_count; i++) adjusted[d.bias[2 * i]] += __uint_as_float(d.bias[2 * i + 1]);
    __syncthreads();
    if (d.mask)
        for (int i = threadIdx.x; i < vocab; i += THREADS)
            if (!(d.mask[i / 64] >> (i % 64) & 1)) adjusted[i] = __uint_as_float(0xff800000u);
    __syncthreads();
}

// Grid: rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const __grid_constant__ SampleArgs a) {
    begin_after_launch_before();
    __shared__ u64 keys[THREADS];
    __shared__ double runs[THREADS];
    __shared__ int found[2];
    const Draw& d = a.draws[blockIdx.x];
    Drawn& out = a.drawn[blockIdx.x];
    float* adjusted = a.adjusted + (size_t)blockIdx.x * a.vocab;
    u64* order = a.order + (size_t)blockIdx.x * a.padded;
    const int vocab = a.vocab;

    u64 bad = ~0ull;
    for (int i = threadIdx.x; i < vocab; i += THREADS)
        if (!(d.logits[i] < __uint_as_float(0x7f800000u))) bad = min(bad, (u64)i);
    bad = block_reduce(bad, keys, [](u64 a, u64 b) { return min(a, b); });
    const u64 own_best = bad == ~0ull ? likeliest(d.logits, vocab, keys) : 0;
    if (threadIdx.x == 0) {
        out.status = bad != ~0ull ? BAD_LOGIT : own_best == ~0ull ? NO_FINITE_LOGIT : DRAWN;
        out.token = (u32)bad;
        out.logprob = bad != ~0ull ? d.logits[bad] : 0.f;
        out.top_count = 0;
    }
    if (bad != ~0ull || own_best == ~0ull) return;
    const double top = d.logits[(u32)own_best];
    double sum = 0.0;
    for (int i = threadIdx.x; i < vocab; i += THREADS) sum += exp((double)d.logits[i] - top);
    const double log_total = top + log(block_reduce(sum, runs, [](double a, double b) { return a + b; }));

    adjust(d, adjusted, vocab);
    const u64 best = likeliest(adjusted, vocab, keys);
    if (best == ~0ull) {
        if (threadIdx.x == 0) out.status = d.mask ? NOTHING_ALLOWED : NO_FINITE_LOGIT;
        return;
    }
    int token = (int)(u32)best;
    if (d.temperature != 0.f) {
        Kept kept = {adjusted, nullptr, vocab, adjusted[token], d.temperature, 0.0};
        const bool cut = d.top_k > 0 && d.top_k < vocab;
        if (cut || d.top_p < 1.f) {
            sort(adjusted, order, vocab, a.padded);
            kept.order = order;
        }
        if (cut) kept.count = d.top_k;
        if (d.top_p < 1.f) kept.count = place_of_share(kept, d.top_p, true, runs, found) + 1;
        kept.least = d.min_p;
        __syncthreads();
        const int place = place_of_share(kept, uniform(d.seed, d.position), false, runs, found);
        if (place >= 0) token = kept.token(place);
    }
    if (threadIdx.x == 0) {
        out.token = (u32)token;
        out.logprob = (float)((double)d.logits[token] - log_total);
    }
    if (!d.top_logprobs) return;
    sort(d.logits, order, vocab, a.padded);
    for (int i = threadIdx.x; i < min(d.top_logprobs, vocab); i += THREADS) {
        const u32 other = (u32)order[i];
        if (!(d.logits[other] > __uint_as_float(0xff800000u))) continue;
        out.top[i] = other;
        out.top_logprobs[i] = (float)((double)d.logits[other] - log_total);
        atomicMax(&out.top_count, i + 1);
    }
}
