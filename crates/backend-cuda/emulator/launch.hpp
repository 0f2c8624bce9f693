// A launch: blocks one after the other, each with fresh fibers and poisoned shared memory. A kernel's host entry is made
// by OVERSHOT_ENTRY, which src/emulator/library.rs writes behind the kernel's text.
#pragma once
#include "fibers.hpp"
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>

// Dynamic shared memory, which kernels declare as `extern __shared__ __align__(128) u8 memory[]`: the most that an
// architecture has, and room to see who writes behind what was asked for.
constexpr int SHARED_BYTES_MAX = 232448, SHARED_GUARD_BYTES = 1024;
extern "C" {
__attribute__((aligned(1024))) thread_local unsigned char memory[SHARED_BYTES_MAX + SHARED_GUARD_BYTES];
}

namespace emulator {

constexpr unsigned char POISON = 0xff;   // NaN in every float format

inline thread_local Runtime* runtime = nullptr;

// This library's thread-local storage as this host thread has it: all its shared memory, and a pointer of our own.
inline int find_storage(dl_phdr_info* info, size_t, void* data) {
    Runtime& r = *static_cast<Runtime*>(data);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto& segment = info->dlpi_phdr[i];
        const auto* base = static_cast<unsigned char*>(info->dlpi_tls_data);
        if (segment.p_type != PT_TLS || base > memory || memory >= base + segment.p_memsz) continue;
        r.shared_base = const_cast<unsigned char*>(base);
        r.shared_bytes = segment.p_memsz;
        return 1;
    }
    return 0;
}

inline void discard(void* data) {
    Runtime* r = static_cast<Runtime*>(data);
    if (r->stacks_mapped) munmap(r->stacks_mapped, (THREADS_MAX + 1) * STACK_BYTES);
    delete r;
}

inline Runtime& runtime_of_this_thread() {
    static const pthread_key_t key = [] {
        pthread_key_t key;
        pthread_key_create(&key, discard);
        return key;
    }();
    if (!runtime) {
        runtime = new Runtime;
        pthread_setspecific(key, runtime);
        memory[0] = 0;                   // storage exists from the first touch on
        dl_iterate_phdr(find_storage, runtime);
        void* stacks = mmap(nullptr, (THREADS_MAX + 1) * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks != MAP_FAILED) {
            runtime->stacks_mapped = stacks;
            const uintptr_t first = (reinterpret_cast<uintptr_t>(stacks) + STACK_BYTES - 1) & ~(STACK_BYTES - 1);
            runtime->stacks = reinterpret_cast<unsigned char*>(first);
        }
    }
    return *runtime;
}

inline void poison_shared(Runtime& r) {
    Runtime* const own = runtime;
    unsigned char* const end = r.shared_base + r.shared_bytes;
    memset(r.shared_base, POISON, memory - r.shared_base);
    memset(memory, POISON, r.launch.shared_bytes + SHARED_GUARD_BYTES);
    memset(memory + sizeof memory, POISON, end - memory - sizeof memory);
    runtime = own;
}

// Stacks that began at the same place of a multiple of their size would meet in a few sets of the host's caches.
constexpr int STAGGERED = 256;
constexpr size_t STAGGER_BYTES = 192;

inline void start_thread() {
    const Runtime& r = own_runtime();
    r.kernel(r.args);
    end_thread();
}

inline unsigned char* stack_of(Runtime& r, int thread) { return r.stacks + thread * STACK_BYTES; }

inline void run_block(Runtime& r) {
    poison_shared(r);
    r.threads = r.live = int(r.launch.threads);
    r.warps_used = (r.threads + 31) / 32;
    r.polling = r.fruitless = r.at_barrier = r.predicates = 0;
    r.ready_warps = 0;
    memset(r.at_named, 0, sizeof r.at_named);
    for (int w = 0; w < r.warps_used; w++) {
        r.warps[w].ready = 0;
        for (Meeting& m : r.warps[w].meetings) m.arrived = 0;
    }
    for (int t = 0; t < r.threads; t++) {
        Fiber& f = r.fibers[t];
        f.thread = {unsigned(t), 0, 0};
        f.number = t;
        f.copy_group = 0;
        f.copies.clear();
        const StackHead head{STACK_MARK, &f, &r};
        memcpy(stack_of(r, t), &head, sizeof head);
        prepare(f, stack_of(r, t), STACK_BYTES - t % STAGGERED * STAGGER_BYTES, start_thread);
        set_ready(r, t);
    }
    change(r.main, *pick(r));
    if (r.failed) return;
    for (int t = 0; t < r.threads; t++)
        if (memcmp(stack_of(r, t), &STACK_MARK, sizeof STACK_MARK)) {
            snprintf(r.message, sizeof r.message, "kernel %s: thread %d needs a larger stack than %zu bytes", r.name, t, STACK_BYTES);
            r.failed = true;
            return;
        }
    for (int i = 0; i < SHARED_GUARD_BYTES; i++)
        if (memory[r.launch.shared_bytes + i] != POISON) {
            snprintf(r.message, sizeof r.message, "kernel %s, block (%u, %u, %u): writes %d bytes behind its %u bytes of dynamic shared memory",
                     r.name, r.block.x, r.block.y, r.block.z, i, r.launch.shared_bytes);
            r.failed = true;
            return;
        }
}

// 0, or 1 with a message.
inline int run_blocks(Runtime& r, char* message, uint32_t room) {
    const uint32_t* grid = r.launch.grid;
    const uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
    r.failed = false;
    r.random = r.launch.seed;
    r.grid_dim = {grid[0], grid[1], grid[2]};
    r.block_dim = {r.launch.threads, 1, 1};
    for (uint64_t i = 0; i < blocks && !r.failed; i++) {
        const uint64_t b = r.launch.order == DESCENDING ? blocks - 1 - i : i;
        r.block = {unsigned(b % grid[0]), unsigned(b / grid[0] % grid[1]), unsigned(b / grid[0] / grid[1])};
        run_block(r);
    }
    if (!r.failed) return 0;
    snprintf(message, room, "%s", r.message);
    return 1;
}

template <typename Args>
inline int launch(const char* name, void (*kernel)(Args), const void* args, uint32_t bytes, const Launch& launch, char* message, uint32_t room) {
    Runtime& r = runtime_of_this_thread();
    if (bytes != sizeof(Args)) {
        snprintf(message, room, "kernel %s takes %zu bytes of arguments and got %u: the two declarations differ", name, sizeof(Args), bytes);
        return 1;
    }
    if (!launch.threads || launch.threads > THREADS_MAX || launch.shared_bytes > SHARED_BYTES_MAX || !r.stacks || !r.shared_base) {
        snprintf(message, room, "kernel %s: %u threads and %u bytes of dynamic shared memory cannot be had", name, launch.threads, launch.shared_bytes);
        return 1;
    }
    r.name = name;
    r.launch = launch;
    r.args = args;
    r.function = reinterpret_cast<void (*)()>(kernel);
    r.kernel = [](const void* args) { reinterpret_cast<void (*)(Args)>(own_runtime().function)(*static_cast<const Args*>(args)); };
    return run_blocks(r, message, room);
}

}  // namespace emulator

#define OVERSHOT_ENTRY(name)                                                                                                  \
    extern "C" __attribute__((visibility("default"))) int emulated_##name(const void* args, uint32_t bytes, const emulator::Launch* launch, char* message, uint32_t room) { \
        return emulator::launch(#name, name, args, bytes, *launch, message, room);                                            \
    }
