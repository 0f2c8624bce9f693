// The functions of kernels/common/ptx.cuh on the host. The emulator includes this file under that name, so that kernels
// need not know. Shared addresses are offsets into this library's thread-local storage.
#pragma once
#include "types.cuh"
#include <sched.h>
#include <time.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace emulator {

inline unsigned char* shared(u32 address) {
    if (address >= own_runtime().shared_bytes) fail("thread %d reaches for shared memory at %u, of %zu bytes", own_thread(), address, own_runtime().shared_bytes);
    return own_runtime().shared_base + address;
}
template <typename T> inline T load_shared(u32 address) {
    if (address % sizeof(T)) fail("thread %d loads %zu bytes from shared memory at %u, which is not a multiple", own_thread(), sizeof(T), address);
    T v;
    memcpy(&v, shared(address), sizeof v);
    return v;
}
template <typename T> inline void store_shared(u32 address, T v) {
    if (address % sizeof(T)) fail("thread %d stores %zu bytes to shared memory at %u, which is not a multiple", own_thread(), sizeof(T), address);
    memcpy(shared(address), &v, sizeof v);
}

inline float number_of_f16(u16 v) {
#if defined(__F16C__)
    return _cvtsh_ss(v);
#else
    // Its bits, where a float's are, are 2^-112 of it, subnormals included.
    const u32 bits = (v & 0x7fffu) << 13, sign = (u32)(v & 0x8000) << 16;
    const float size = same_bits<float>(bits) * 0x1p112f;
    return same_bits<float>(sign | ((v & 0x7c00) == 0x7c00 ? bits | 0x7f800000u : same_bits<u32>(size)));
#endif
}
inline float number_of_bf16(u16 v) { return same_bits<float>((u32)v << 16); }
inline u16 bf16_of(float x) {
    u32 bits = same_bits<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return u16((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
// To the nearest number with `fraction_bits` and the smallest exponent `least`, ties to even.
inline double round_to(double x, int fraction_bits, int least) {
    if (x == 0 || !(fabs(x) < INFINITY)) return x;
    int exponent;
    frexp(x, &exponent);
    const int unit = (exponent - 1 < least ? least : exponent - 1) - fraction_bits;
    return ldexp(nearbyint(ldexp(x, -unit)), unit);
}
inline u16 f16_of(float x) {
    const u32 bits = same_bits<u32>(x), size = bits & 0x7fffffffu;
    const u16 sign = u16(bits >> 16 & 0x8000);
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x477ff000u) return sign | 0x7c00;                   // 65,520 and beyond
    if (size < 0x38800000u) return sign | u16(same_bits<u32>(same_bits<float>(size) + 0.5f) - 0x3f000000u);   // below 2^-14: units of 2^-24
    return sign | u16((size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13);
}
inline u8 e4m3_of(float x) {
    const u8 sign = u8(same_bits<u32>(x) >> 24 & 0x80);
    if (x != x) return sign | 0x7f;
    const double r = fabs(round_to(x, 3, -6));
    if (r >= 448) return sign | 0x7e;
    if (r < 0x1p-6) return sign | u8(r * 512);
    int exponent;
    const double fraction = frexp(r, &exponent);
    return sign | u8((exponent + 6) << 3 | int(fraction * 16 - 8));
}
// Exact: an E4M3 number's bits, where f16's are, are 2^-8 of it; f16 has subnormals enough.
inline u16 f16_of_e4m3(u8 v) {
    static const struct Table {
        u16 of[256];
        Table() {
            for (int v = 0; v < 256; v++) {
                const u16 bits = u16((v & 0x80) << 8 | (v & 0x7f) << 7);
                of[v] = (v & 0x7f) == 0x7f ? u16(bits | 0x7fff) : f16_of(number_of_f16(bits) * 256.f);
            }
        }
    } table;
    return table.of[v];
}

struct Matrices { u32* r; u32 address; bool transposed; };
inline void load_matrices(u32 (&r)[4], u32 address, bool transposed) {
    if (address % 16) fail("thread %d: ldmatrix from %u, which is not a multiple of 16", own_thread(), address);
    Matrices own{r, address, transposed};
    meet("ldmatrix", ~0u, &own, [](void** all, uint32_t) {
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++) {
                const auto& to = *static_cast<Matrices*>(all[lane]);
                u16 pair[2];
                for (int i = 0; i < 2; i++) {
                    const int own = lane / 4, other = lane % 4 * 2 + i;
                    const int row = to.transposed ? other : own, column = to.transposed ? own : other;
                    memcpy(&pair[i], shared(static_cast<Matrices*>(all[8 * m + row])->address) + column * 2, 2);
                }
                to.r[m] = pair[0] | (u32)pair[1] << 16;
            }
    });
}

// c[COLUMNS][16 x 8] += a[STEPS][16 x 16] b[16 x 8 COLUMNS], step by step; DISTINCT steps have a `b` of their own, then they begin again.
template <int COLUMNS, int STEPS> struct Fragments { float* c[COLUMNS]; const u32* a[STEPS]; u32 b[COLUMNS][4]; };

// The device does not say in which order it adds; here products are exact and summed in float64 before one rounding a step.
template <float (*NUMBER)(u16), int COLUMNS, int STEPS, int DISTINCT> inline void multiply_lanes(void** all) {
    typedef Fragments<COLUMNS, STEPS> Own;
    constexpr int WIDTH = 8 * COLUMNS;
    static thread_local double right[DISTINCT][16][WIDTH];
    double probe = 0;                     // no number if one of `right` is none
    for (int lane = 0; lane < 32; lane++) {
        const Own& f = *static_cast<Own*>(all[lane]);
        for (int n = 0; n < COLUMNS; n++)
            for (int i = 0; i < 2 * DISTINCT; i++) {
                double (*to)[WIDTH] = right[i / 2] + lane % 4 * 2 + i % 2 * 8;
                to[0][8 * n + lane / 4] = NUMBER(u16(f.b[n][i]));
                to[1][8 * n + lane / 4] = NUMBER(u16(f.b[n][i] >> 16));
                probe += to[0][8 * n + lane / 4] * 0. + to[1][8 * n + lane / 4] * 0.;
            }
    }
    for (int row = 0; row < 16; row++) {
        Own* const* four = reinterpret_cast<Own* const*>(all) + row % 8 * 4;
        u32 bits = 0;
        for (int s = 0; s < STEPS; s++)
            for (int t = 0; t < 4; t++) bits |= four[t]->a[s][row / 8] | four[t]->a[s][row / 8 + 2];
        if (!(bits & 0x7fff7fffu) && probe == 0) continue;                // a row of zeros adds nothing to numbers
        double sum[WIDTH];
        float rounded[WIDTH];
        for (int i = 0; i < WIDTH; i++) rounded[i] = four[i % 8 / 2]->c[i / 8][row / 8 * 2 + i % 2];
        for (int s = 0; s < STEPS; s++) {
            for (int i = 0; i < WIDTH; i++) sum[i] = rounded[i];
            for (int k = 0; k < 16; k++) {
                const u32 two = four[k % 8 / 2]->a[s][row / 8 + k / 8 * 2];
                const double left = NUMBER(u16(two >> k % 2 * 16));
                // The host's compiler makes vectors of these.
                for (int i = 0; i < WIDTH; i++) sum[i] += left * right[s % DISTINCT][k][i];
            }
            for (int i = 0; i < WIDTH; i++) rounded[i] = float(sum[i]);
        }
        for (int i = 0; i < WIDTH; i++) four[i % 8 / 2]->c[i / 8][row / 8 * 2 + i % 2] = rounded[i];
    }
}
template <float (*NUMBER)(u16), int DISTINCT, int COLUMNS, int STEPS> inline void multiply(const char* what, Fragments<COLUMNS, STEPS> own) {
    meet(what, ~0u, &own, [](void** all, uint32_t) { multiply_lanes<NUMBER, COLUMNS, STEPS, DISTINCT>(all); });
}

inline void queue_copy(u32 to, const void* from, int bytes, int of) {
    if (to % of || reinterpret_cast<uintptr_t>(from) % of) fail("thread %d copies %d bytes between addresses that are not multiples", own_thread(), of);
    own_fiber().copies.push_back({shared(to), from, bytes, of - bytes, own_fiber().copy_group});
}
// Carries out the copies of all groups before `group`.
inline void do_copies(int group) {
    auto& copies = own_fiber().copies;
    size_t done = 0;
    for (; done < copies.size() && copies[done].group < group; done++) {
        memcpy(copies[done].to, copies[done].from, copies[done].bytes);
        memset(static_cast<u8*>(copies[done].to) + copies[done].bytes, 0, copies[done].zeros);
    }
    copies.erase(copies.begin(), copies.begin() + done);
}

// A barrier in shared memory: arrivals still missing, arrivals of a phase, bytes still missing, phase.
struct Barrier {
    u64 pending : 12, arrivals : 12, phase : 1, unused : 7;
    i64 bytes : 32;
};
inline void change_barrier(u32 address, int arrivals, i64 bytes) {
    Barrier b = load_shared<Barrier>(address);
    if (arrivals > (int)b.pending) fail("thread %d: more arrivals at the barrier at %u than it was made for", own_thread(), address);
    b.pending -= arrivals;
    b.bytes += bytes;
    if (!b.pending && !b.bytes) {
        b.phase ^= 1;
        b.pending = b.arrivals;
        progress();
    }
    store_shared(address, b);
}

}  // namespace emulator

// Launches follow each other here.
inline void let_next_begin() {}
inline void wait_for_launch_before() {}
inline void begin_after_launch_before() {}

inline float4 load_global_float4(const float* p) { return *(const float4*)p; }
inline float load_global_float(const float* p) { return *p; }

inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

inline void load_matrices(u32 (&r)[4], u32 address) { emulator::load_matrices(r, address, false); }
inline void load_matrices_transposed(u32 (&r)[4], u32 address) { emulator::load_matrices(r, address, true); }
inline void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    emulator::multiply<emulator::number_of_f16, 1>("mma f16", emulator::Fragments<1, 1>{{c}, {a}, {{b0, b1}}});
}
inline void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    emulator::multiply<emulator::number_of_bf16, 1>("mma bf16", emulator::Fragments<1, 1>{{c}, {a}, {{b0, b1}}});
}
inline void mma_f16_n16_twice(float (&c0)[4], float (&c1)[4], const u32 (&a0)[4], const u32 (&a1)[4], const u32 (&b)[4]) {
    emulator::multiply<emulator::number_of_f16, 1>("mma f16 n16 twice", emulator::Fragments<2, 2>{{c0, c1}, {a0, a1}, {{b[0], b[1]}, {b[2], b[3]}}});
}
inline void mma_f16_k32(float (&c)[4], const u32 (&a)[2][4], const uint4& b) {
    emulator::multiply<emulator::number_of_f16, 2>("mma f16 k32", emulator::Fragments<1, 2>{{c}, {a[0], a[1]}, {{b.x, b.y, b.z, b.w}}});
}
inline void mma_bf16_k32(float (&c)[4], const u32 (&a)[2][4], const uint4& b) {
    emulator::multiply<emulator::number_of_bf16, 2>("mma bf16 k32", emulator::Fragments<1, 2>{{c}, {a[0], a[1]}, {{b.x, b.y, b.z, b.w}}});
}
inline void mma_f16_k32_twice(float (&c)[4], const u32 (&a0)[2][4], const u32 (&a1)[2][4], const u32 (&b)[4]) {
    emulator::multiply<emulator::number_of_f16, 2>("mma f16 k32 twice", emulator::Fragments<1, 4>{{c}, {a0[0], a0[1], a1[0], a1[1]}, {{b[0], b[1], b[2], b[3]}}});
}

inline u32 f16x2_of_e4m3x2(u16 v) { return emulator::f16_of_e4m3((u8)v) | (u32)emulator::f16_of_e4m3((u8)(v >> 8)) << 16; }
inline void f16x4_of_e4m3x4(u32 v, u32& low, u32& high) {
    low = f16x2_of_e4m3x2((u16)v);
    high = f16x2_of_e4m3x2((u16)(v >> 16));
}
inline u32 f16x2_of(float low, float high) { return emulator::f16_of(low) | (u32)emulator::f16_of(high) << 16; }
inline u32 bf16x2_of(float low, float high) { return emulator::bf16_of(low) | (u32)emulator::bf16_of(high) << 16; }
inline u32 e4m3x2_of(float low, float high) { return emulator::e4m3_of(low) | (u32)emulator::e4m3_of(high) << 8; }
inline float float_of_f16(u16 v) { return emulator::number_of_f16(v); }
inline u32 multiply_f16x2(u32 a, u32 b) {
    return f16x2_of(float_of_f16((u16)a) * float_of_f16((u16)b), float_of_f16((u16)(a >> 16)) * float_of_f16((u16)(b >> 16)));
}
inline u32 multiply_bf16x2(u32 a, u32 b) {
    return bf16x2_of(emulator::number_of_bf16((u16)a) * emulator::number_of_bf16((u16)b), emulator::number_of_bf16((u16)(a >> 16)) * emulator::number_of_bf16((u16)(b >> 16)));
}
inline u32 max_u16x2(u32 a, u32 b) { return max((u16)a, (u16)b) | (u32)max((u16)(a >> 16), (u16)(b >> 16)) << 16; }
inline float exp2_approx(float x) { return exp2f(x); }

inline void barrier_init(u32 barrier, int arrivals) {
    emulator::Barrier b{};
    b.pending = b.arrivals = arrivals;
    emulator::store_shared(barrier, b);
}
inline void barrier_expect(u32 barrier, u32 bytes) { emulator::change_barrier(barrier, 1, bytes); }
inline void barrier_arrive(u32 barrier) { emulator::change_barrier(barrier, 1, 0); }
inline void barrier_arrive_after_copies(u32 barrier) {
    emulator::do_copies(1 << 30);
    emulator::change_barrier(barrier, 1, 0);
}
inline void barrier_wait(u32 barrier, u32 parity) {
    while (emulator::load_shared<emulator::Barrier>(barrier).phase == parity) emulator::poll("an mbarrier");
}
inline void fence_async_proxy() {}
inline void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    memcpy(emulator::shared(to), from, bytes);
    emulator::change_barrier(barrier, 0, -(i64)bytes);
}
inline void prefetch_l2(const void*) {}
inline void copy_4_bytes(u32 to, const void* from, int bytes) { emulator::queue_copy(to, from, bytes, 4); }
inline void copy_8_bytes(u32 to, const void* from, int bytes = 8) { emulator::queue_copy(to, from, bytes, 8); }
inline void copy_16_bytes(u32 to, const void* from, int bytes = 16) { emulator::queue_copy(to, from, bytes, 16); }
inline void commit_copies() { emulator::own_fiber().copy_group++; }
template <int PENDING> inline void wait_for_groups() { emulator::do_copies(emulator::own_fiber().copy_group - PENDING); }
inline void wait_for_copies() { emulator::do_copies(1 << 30); }
template <int ID, int THREADS> inline void sync_some() { emulator::named_barrier(ID, THREADS); }

inline uint4 load_shared_16(u32 address) { return emulator::load_shared<uint4>(address); }
inline u64 load_shared_8(u32 address) { return emulator::load_shared<u64>(address); }
inline void store_shared_8(u32 address, u64 v) { emulator::store_shared(address, v); }
inline float2 load_shared_float2(u32 address) { return emulator::load_shared<float2>(address); }
inline float load_shared_float(u32 address) { return emulator::load_shared<float>(address); }
inline u32 load_shared_u32(u32 address) { return emulator::load_shared<u32>(address); }
inline u16 load_shared_u16(u32 address) { return emulator::load_shared<u16>(address); }
inline u32 load_shared_u8(u32 address) { return emulator::load_shared<u8>(address); }
inline void store_shared_16(u32 address, u32 x, u32 y, u32 z, u32 w) { emulator::store_shared(address, make_uint4(x, y, z, w)); }
inline void store_shared_floats(u32 address, float x, float y, float z, float w) { emulator::store_shared(address, make_float4(x, y, z, w)); }
inline void store_shared_u32(u32 address, u32 v) { emulator::store_shared(address, v); }
inline void store_shared_float(u32 address, float v) { emulator::store_shared(address, v); }
inline void store_shared_u16(u32 address, u16 v) { emulator::store_shared(address, v); }
inline void store_shared_u8(u32 address, u32 v) { emulator::store_shared(address, (u8)v); }

inline u32 load_acquire_system(const u32* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_release_system(u32* at, u32 v) { __atomic_store_n(at, v, __ATOMIC_RELEASE); }
inline void load_relaxed_system(const u64* at, u64& first, u64& second) {
    first = __atomic_load_n(at, __ATOMIC_RELAXED);
    second = __atomic_load_n(at + 1, __ATOMIC_RELAXED);
}
inline void store_relaxed_system(u64* at, u64 first, u64 second) {
    __atomic_store_n(at, first, __ATOMIC_RELAXED);
    __atomic_store_n(at + 1, second, __ATOMIC_RELAXED);
}
inline float4 load_past_l1(const float4* at) { return *at; }
inline float load_past_l1(const float* at) { return *at; }
// The peer runs on another thread of this host: waiting for it is no sign of being stuck.
inline void pause_for_a_peer() {
    emulator::progress();
    sched_yield();
    emulator::poll("a peer");
}
inline u64 nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000u + now.tv_nsec;
}
