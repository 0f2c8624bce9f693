// The language of kernels on the host: what NVRTC has built in and our kernels use. Every kernel's text is compiled
// behind this file. Anything missing is a compile error that names it: add it here.
//
// Roundings are those of IEEE float32 without contraction; approximate instructions (`__expf`, `rsqrtf`) are exact to the
// last place here, so a test against the emulator must allow for both. Atomics are plain: blocks run one by one.
#pragma once
#include "launch.hpp"
#include <math.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local

#define threadIdx (emulator::own_fiber().thread)
#define blockIdx (emulator::own_runtime().block)
#define blockDim (emulator::own_runtime().block_dim)
#define gridDim (emulator::own_runtime().grid_dim)
constexpr int warpSize = 32;

struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(4) ushort2 { unsigned short x, y; };
struct __align__(4) uchar4 { unsigned char x, y, z, w; };
struct __align__(16) ulonglong2 { unsigned long long x, y; };
struct __align__(16) double2 { double x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

template <typename T> inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> inline T max(T a, T b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline long long min(long long a, int b) { return min(a, (long long)b); }
inline long long min(int a, long long b) { return min((long long)a, b); }
inline long long max(long long a, int b) { return max(a, (long long)b); }
inline long long max(int a, long long b) { return max((long long)a, b); }

template <typename To, typename From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "other sizes");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return same_bits<double>(x); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.f), 1.f); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline int __float2int_rn(float x) { return int(nearbyintf(x)); }
inline int __float2int_rd(float x) { return int(floorf(x)); }
inline unsigned __float2uint_rn(float x) { return unsigned(nearbyintf(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline double __ull2double_rn(unsigned long long x) { return double(x); }
inline float __double2float_rn(double x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long all = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned s = selector >> (4 * i) & 15, byte = unsigned(all >> (8 * (s & 7))) & 255;
        r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return r;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}

template <typename T> inline T __ldg(const T* p) { return *p; }
template <typename T> inline T __ldcg(const T* p) { return *p; }
template <typename T> inline T __ldca(const T* p) { return *p; }
template <typename T> inline T __ldcs(const T* p) { return *p; }
template <typename T> inline T __ldlu(const T* p) { return *p; }
template <typename T> inline T __ldcv(const T* p) { return *p; }
template <typename T> inline void __stcg(T* p, T v) { *p = v; }
template <typename T> inline void __stcs(T* p, T v) { *p = v; }
template <typename T> inline void __stwt(T* p, T v) { *p = v; }

template <typename T> inline T exchange_with(T* p, T v) { const T old = *p; *p = v; return old; }
inline int atomicAdd(int* p, int v) { return exchange_with(p, *p + v); }
inline unsigned atomicAdd(unsigned* p, unsigned v) { return exchange_with(p, *p + v); }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) { return exchange_with(p, *p + v); }
inline float atomicAdd(float* p, float v) { return exchange_with(p, *p + v); }
template <typename T> inline T atomicMax(T* p, T v) { return exchange_with(p, max(*p, v)); }
template <typename T> inline T atomicMin(T* p, T v) { return exchange_with(p, min(*p, v)); }
template <typename T> inline T atomicOr(T* p, T v) { return exchange_with(p, T(*p | v)); }
template <typename T> inline T atomicAnd(T* p, T v) { return exchange_with(p, T(*p & v)); }
template <typename T> inline T atomicExch(T* p, T v) { return exchange_with(p, v); }
template <typename T> inline T atomicCAS(T* p, T expected, T v) { return exchange_with(p, *p == expected ? v : *p); }
inline unsigned atomicInc(unsigned* p, unsigned limit) { return exchange_with(p, *p >= limit ? 0u : *p + 1); }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emulator::poll("a sleep"); }
inline void __trap() { emulator::fail("thread %d reached __trap", emulator::own_thread()); }
inline size_t __cvta_generic_to_shared(const void* p) { return size_t(static_cast<const unsigned char*>(p) - emulator::own_runtime().shared_base); }

inline void __syncthreads() { emulator::block_barrier(false); }
inline int __syncthreads_or(int predicate) { return emulator::block_barrier(predicate) > 0; }
inline int __syncthreads_count(int predicate) { return emulator::block_barrier(predicate); }
inline int __syncthreads_and(int predicate) { return emulator::block_barrier(!predicate) == 0; }

namespace emulator {

inline int own_lane() { return own_thread() % 32; }
template <typename Do> inline void each_lane(uint32_t mask, Do work) {
    for (; mask; mask &= mask - 1) work(__builtin_ctz(mask));
}

// A lane that reads from one outside of the mask gets a NaN pattern: the value is not defined.
template <typename T> struct Shuffle { T value, result; int from; };
template <typename T> inline T shuffle(const char* what, unsigned mask, T value, int from) {
    Shuffle<T> own{value, value, from};
    meet(what, mask, &own, [](void** all, uint32_t mask) {
        each_lane(mask, [&](int lane) {
            auto& to = *static_cast<Shuffle<T>*>(all[lane]);
            if (mask >> to.from & 1) to.result = static_cast<Shuffle<T>*>(all[to.from])->value;
            else memset(static_cast<void*>(&to.result), POISON, sizeof to.result);
        });
    });
    return own.result;
}

template <typename T> struct Reduce { T value, result; };
template <typename T, T (*OPERATION)(T, T)> inline T reduce(const char* what, unsigned mask, T value) {
    Reduce<T> own{value, value};
    meet(what, mask, &own, [](void** all, uint32_t mask) {
        T total = static_cast<Reduce<T>*>(all[__builtin_ctz(mask)])->value;
        each_lane(mask & (mask - 1), [&](int lane) { total = OPERATION(total, static_cast<Reduce<T>*>(all[lane])->value); });
        each_lane(mask, [&](int lane) { static_cast<Reduce<T>*>(all[lane])->result = total; });
    });
    return own.result;
}
template <typename T> inline T sum_of(T a, T b) { return a + b; }
template <typename T> inline T least_of(T a, T b) { return b < a ? b : a; }
template <typename T> inline T most_of(T a, T b) { return a < b ? b : a; }
template <typename T> inline T or_of(T a, T b) { return a | b; }
template <typename T> inline T and_of(T a, T b) { return a & b; }
template <typename T> inline T xor_of(T a, T b) { return a ^ b; }

template <typename T> struct Match { T value; unsigned same; };

}  // namespace emulator

inline void __syncwarp(unsigned mask = ~0u) { emulator::meet("__syncwarp", mask, nullptr, [](void**, uint32_t) {}); }

// `width` parts the warp into sections, as the hardware does.
template <typename T> inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const int lane = emulator::own_lane();
    return emulator::shuffle("__shfl_sync", mask, value, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = emulator::own_lane(), from = lane ^ bits;
    return emulator::shuffle("__shfl_xor_sync", mask, value, from / width > lane / width ? lane : from);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = emulator::own_lane(), from = lane + int(by);
    return emulator::shuffle("__shfl_down_sync", mask, value, from / width != lane / width ? lane : from);
}
template <typename T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = emulator::own_lane(), from = lane - int(by);
    return emulator::shuffle("__shfl_up_sync", mask, value, from < (lane & ~(width - 1)) ? lane : from);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulator::reduce<unsigned, emulator::or_of<unsigned>>("__ballot_sync", mask, predicate ? 1u << emulator::own_lane() : 0u);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
inline unsigned __activemask() { return ~0u; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) { return emulator::reduce<unsigned, emulator::sum_of<unsigned>>("__reduce_add_sync", mask, v); }
inline int __reduce_add_sync(unsigned mask, int v) { return emulator::reduce<int, emulator::sum_of<int>>("__reduce_add_sync", mask, v); }
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) { return emulator::reduce<unsigned, emulator::most_of<unsigned>>("__reduce_max_sync", mask, v); }
inline int __reduce_max_sync(unsigned mask, int v) { return emulator::reduce<int, emulator::most_of<int>>("__reduce_max_sync", mask, v); }
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return emulator::reduce<unsigned, emulator::least_of<unsigned>>("__reduce_min_sync", mask, v); }
inline int __reduce_min_sync(unsigned mask, int v) { return emulator::reduce<int, emulator::least_of<int>>("__reduce_min_sync", mask, v); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) { return emulator::reduce<unsigned, emulator::or_of<unsigned>>("__reduce_or_sync", mask, v); }
inline unsigned __reduce_and_sync(unsigned mask, unsigned v) { return emulator::reduce<unsigned, emulator::and_of<unsigned>>("__reduce_and_sync", mask, v); }
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v) { return emulator::reduce<unsigned, emulator::xor_of<unsigned>>("__reduce_xor_sync", mask, v); }
template <typename T> inline unsigned __match_any_sync(unsigned mask, T value) {
    emulator::Match<T> own{value, 0};
    emulator::meet("__match_any_sync", mask, &own, [](void** all, uint32_t mask) {
        emulator::each_lane(mask, [&](int a) {
            auto& to = *static_cast<emulator::Match<T>*>(all[a]);
            emulator::each_lane(mask, [&](int b) {
                if (static_cast<emulator::Match<T>*>(all[b])->value == to.value) to.same |= 1u << b;
            });
        });
    });
    return own.same;
}
