// One function per PTX instruction that kernels use: they hold no `asm` of their own. No CUDA header is needed, so that
// NVRTC takes a tenth of a second and one library. The emulator has a file of the same name with the same functions in
// C++ (emulator/ptx.cuh): an instruction that is added here is added there.
#pragma once
#include "types.cuh"

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// A kernel whose every block waits for the launch before may itself be launched before that ends (src/cuda/module.rs): its blocks take
// their places as soon as all blocks of that have let the next begin, or have ended. Until it has waited, a block must read nothing
// that a kernel writes, and write nothing. What launches before that one wrote is there then, too, as that has waited for it.
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void begin_after_launch_before() {
    let_next_begin();
    wait_for_launch_before();
}

// Loads that stay behind a wait and in front of what comes next, so that many are on their way at once. `__ldg`, which the compiler may
// move, is for what no kernel writes.
__device__ __forceinline__ float4 load_global_float4(const float* p) {
    float4 v;
    asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ float load_global_float(const float* p) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}

// Four 8x8 matrices of 16-bit numbers; lanes 8m..8m+7 address the rows of matrix m.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// c[16 x 8] += a[16 x 16] b[16 x 8], float32 sums.
__device__ __forceinline__ void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for an `a` in two terms, for 16 columns of c and over 32 of a: four instructions, for which the emulator's lanes meet once.
__device__ __forceinline__ void mma_f16_n16_twice(float (&c0)[4], float (&c1)[4], const u32 (&a0)[4], const u32 (&a1)[4], const u32 (&b)[4]) {
    mma_f16(c0, a0, b[0], b[1]);
    mma_f16(c1, a0, b[2], b[3]);
    mma_f16(c0, a1, b[0], b[1]);
    mma_f16(c1, a1, b[2], b[3]);
}
// 32 columns of a, of which `b` has the first 16 in x and y.
__device__ __forceinline__ void mma_f16_k32(float (&c)[4], const u32 (&a)[2][4], const uint4& b) {
    mma_f16(c, a[0], b.x, b.y);
    mma_f16(c, a[1], b.z, b.w);
}
__device__ __forceinline__ void mma_bf16_k32(float (&c)[4], const u32 (&a)[2][4], const uint4& b) {
    mma_bf16(c, a[0], b.x, b.y);
    mma_bf16(c, a[1], b.z, b.w);
}
__device__ __forceinline__ void mma_f16_k32_twice(float (&c)[4], const u32 (&a0)[2][4], const u32 (&a1)[2][4], const u32 (&b)[4]) {
    mma_f16(c, a0[0], b[0], b[1]);
    mma_f16(c, a0[1], b[2], b[3]);
    mma_f16(c, a1[0], b[0], b[1]);
    mma_f16(c, a1[1], b[2], b[3]);
}

// Two E4M3 bytes to two f16 numbers: exact.
__device__ __forceinline__ u32 f16x2_of_e4m3x2(u16 v) {
#if defined(ABLATE) && (ABLATE & 16)
    return (u32)v | 0x10000000;
#else
    u32 r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(v));
    return r;
#endif
}
// Four bytes at once: halves of a register are named, not shifted out.
__device__ __forceinline__ void f16x4_of_e4m3x4(u32 v, u32& low, u32& high) {
    asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;\n}"
        : "=r"(low), "=r"(high) : "r"(v));
}
__device__ __forceinline__ u32 f16x2_of(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ u32 bf16x2_of(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// Two numbers to E4M3, to the nearest, ties to even; beyond 448 is 448.
__device__ __forceinline__ u32 e4m3x2_of(float low, float high) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ float float_of_f16(u16 v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
    return r;
}
__device__ __forceinline__ u32 multiply_f16x2(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 multiply_bf16x2(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 max_u16x2(u32 a, u32 b) {
    u32 r;
    asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ float exp2_approx(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n .reg .pred done;\n WAIT:\n mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n @!done bra WAIT;\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void prefetch_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
// 4, 8 or 16 bytes, of which those from `bytes` on are zeros.
__device__ __forceinline__ void copy_4_bytes(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_8_bytes(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_8_bytes(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_16_bytes(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_16_bytes(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Closes a group of this thread's copies; and waits until at most PENDING such groups are on their way.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
// Until all copies of this thread are there, those that no barrier speaks of.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A barrier of its own number (1 to 15) for THREADS threads of the block.
template <int ID, int THREADS>
__device__ __forceinline__ void sync_some() { asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory"); }

__device__ __forceinline__ uint4 load_shared_16(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}
__device__ __forceinline__ u64 load_shared_8(u32 address) {
    u64 v;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ void store_shared_8(u32 address, u64 v) {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}
__device__ __forceinline__ float2 load_shared_float2(u32 address) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
    return v;
}
__device__ __forceinline__ float load_shared_float(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ u32 load_shared_u32(u32 address) {
    u32 v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ u16 load_shared_u16(u32 address) {
    u16 v;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ u32 load_shared_u8(u32 address) {
    u32 v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ void store_shared_16(u32 address, u32 x, u32 y, u32 z, u32 w) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void store_shared_floats(u32 address, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
__device__ __forceinline__ void store_shared_u32(u32 address, u32 v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared_float(u32 address, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ void store_shared_u16(u32 address, u16 v) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}
__device__ __forceinline__ void store_shared_u8(u32 address, u32 v) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

// Words that ranks on several devices share.
__device__ __forceinline__ u32 load_acquire_system(const u32* at) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_release_system(u32* at, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
// Two such words of 8 bytes, one after the other; each is whole whenever it is seen, and speaks for nothing but itself.
__device__ __forceinline__ void load_relaxed_system(const u64* at, u64& first, u64& second) {
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0,%1}, [%2];" : "=l"(first), "=l"(second) : "l"(at) : "memory");
}
__device__ __forceinline__ void store_relaxed_system(u64* at, u64 first, u64 second) {
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1,%2};" ::"l"(at), "l"(first), "l"(second) : "memory");
}
// What another device may just have written: this one's first-level cache knows nothing of it.
__device__ __forceinline__ float4 load_past_l1(const float4* at) {
    float4 v;
    asm volatile("ld.volatile.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ float load_past_l1(const float* at) {
    float v;
    asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(v) : "l"(at) : "memory");
    return v;
}
// In a loop that waits for one.
__device__ __forceinline__ void pause_for_a_peer() { asm volatile("nanosleep.u32 20;" ::: "memory"); }
__device__ __forceinline__ u64 nanoseconds() {
    u64 v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v) :: "memory");
    return v;
}
