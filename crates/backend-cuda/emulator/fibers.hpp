// Threads of a block as fibers: they take turns on one host thread and change places only where one waits for others.
// So a missing barrier shows as another result in another order of threads (`Order`), and a barrier that somebody never
// reaches as a message instead of a hang. Launching is in launch.hpp, the language of kernels in cuda.hpp.
//
// Blocks run one after the other: a block that waits for what a later one writes is not supported. Shared memory is
// thread-local storage of the library a kernel is compiled into, so that several host threads may launch at once.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

constexpr int THREADS_MAX = 1024, WARPS_MAX = THREADS_MAX / 32, NAMED_BARRIERS = 16, MEETINGS_MAX = 8;
// Rounds in which threads polled and nobody got anywhere.
constexpr int FRUITLESS_MAX = 1 << 16;

enum Order : uint32_t { ASCENDING, DESCENDING, RANDOM };

// As src/emulator/library.rs declares it: change both.
struct Launch {
    uint32_t grid[3], threads, shared_bytes, order;
    uint64_t seed;
};

struct Index3 { unsigned x, y, z; };

enum class State : uint8_t { Ready, AtBlockBarrier, AtNamedBarrier, AtWarp, Polling, Done };

// A cp.async that nobody has waited for yet: carried out as late as is allowed, so that a missing wait shows.
struct Copy { void* to; const void* from; int bytes, zeros, group; };

struct Fiber {
    Index3 thread;
    int number;
    State state;
    int named;                        // which barrier, of State::AtNamedBarrier
    uint32_t mask;                    // which lanes, of State::AtWarp
    const char* waits_for;
    int copy_group;
    std::vector<Copy> copies;
#if defined(__x86_64__)
    void* stack_pointer;
#else
    ucontext_t context;
#endif
};

// Lanes of a warp that meet for one operation; the last to come carries it out for all.
typedef void (*Complete)(void** payloads, uint32_t mask);
struct Meeting {
    uint32_t mask, arrived;
    Complete complete;
    void* payload[32];
};

struct Warp {
    uint32_t ready;
    Meeting meetings[MEETINGS_MAX];
};

struct Runtime {
    Fiber fibers[THREADS_MAX], main;
    Warp warps[WARPS_MAX];
    void* stacks_mapped = nullptr;
    unsigned char* stacks = nullptr;      // at a multiple of a stack's bytes
    unsigned char* shared_base = nullptr;   // of this library's thread-local storage
    size_t shared_bytes = 0;

    const char* name;
    void (*kernel)(const void*);      // calls `function` with what it points to
    void (*function)();
    const void* args;
    Launch launch;
    Index3 block, block_dim, grid_dim;

    int threads, warps_used, live, polling, fruitless;
    uint32_t ready_warps;             // with a ready lane
    int at_barrier, predicates, barrier_result;
    int at_named[NAMED_BARRIERS];
    uint64_t random;
    bool failed;
    char message[1024];
};

constexpr size_t STACK_BYTES = 128 << 10;
constexpr uint64_t STACK_MARK = 0x5afe57ac4e4d0001ull;

// The lowest bytes of a fiber's stack, which lies at a multiple of its size: how a fiber finds itself, as thread-local storage of a
// library costs a call.
struct StackHead {
    uint64_t mark;
    Fiber* fiber;
    Runtime* runtime;
};
inline StackHead& own_stack() { return *reinterpret_cast<StackHead*>(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) & ~(STACK_BYTES - 1)); }
inline Fiber& own_fiber() { return *own_stack().fiber; }
inline Runtime& own_runtime() { return *own_stack().runtime; }

#if defined(__x86_64__)
extern "C" void overshot_switch(void** from, void* to);
asm(R"(
.text
.type overshot_switch, @function
overshot_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size overshot_switch, .-overshot_switch
)");
inline void change(Fiber& from, Fiber& to) {
    overshot_switch(&from.stack_pointer, to.stack_pointer);
}
inline void prepare(Fiber& fiber, unsigned char* stack, size_t bytes, void (*start)()) {
    void** top = reinterpret_cast<void**>(stack + bytes) - 2;   // 16-byte aligned where `start` would have been called
    *top = reinterpret_cast<void*>(start);
    fiber.stack_pointer = top - 6;
}
#else
inline void change(Fiber& from, Fiber& to) {
    swapcontext(&from.context, &to.context);
}
inline void prepare(Fiber& fiber, unsigned char* stack, size_t bytes, void (*start)()) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = bytes;
    makecontext(&fiber.context, start, 0);
}
#endif

inline uint64_t next_random(uint64_t& state) {
    uint64_t z = state += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

inline int own_thread() { return own_fiber().number; }

// Ends the launch with a message; whatever the fibers hold is left behind.
[[noreturn]] inline void fail(const char* format, ...) {
    Runtime& r = own_runtime();
    const Index3 b = r.block;
    int n = snprintf(r.message, sizeof r.message, "kernel %s, block (%u, %u, %u): ", r.name, b.x, b.y, b.z);
    va_list list;
    va_start(list, format);
    vsnprintf(r.message + n, sizeof r.message - n, format, list);
    va_end(list);
    r.failed = true;
    change(own_fiber(), r.main);
    __builtin_unreachable();
}

// Nobody can go on: says who waits for what, threads that wait alike once.
[[noreturn]] inline void fail_stuck() {
    Runtime& r = own_runtime();
    char text[768] = "";
    int n = 0, said = 0;
    const Fiber* last = nullptr;
    for (int t = 0; t < r.threads && said < 6; t++) {
        const Fiber& f = r.fibers[t];
        if (f.state == State::Done) continue;
        if (last && last->waits_for == f.waits_for && (f.state != State::AtWarp || last->mask == f.mask)) continue;
        last = &f;
        said++;
        n += snprintf(text + n, sizeof text - n, "; thread %d waits at %s", t, f.waits_for);
        if (f.state == State::AtWarp) {
            uint32_t arrived = 0;
            for (const Meeting& m : r.warps[t / 32].meetings)
                if (m.arrived && m.mask == f.mask) arrived = m.arrived;
            n += snprintf(text + n, sizeof text - n, " with mask %08x, where lanes %08x never came", f.mask, f.mask & ~arrived);
        } else if (f.state == State::AtBlockBarrier) {
            n += snprintf(text + n, sizeof text - n, ", where %d of %d live threads came", r.at_barrier, r.live);
        }
    }
    fail("no thread can go on%s", text);
}

inline Fiber* pick(Runtime& r) {
    const uint32_t order = r.launch.order, warps = r.ready_warps;
    if (!warps) return nullptr;
    if (order == DESCENDING) {
        const int w = 31 - __builtin_clz(warps);
        return &r.fibers[w * 32 + 31 - __builtin_clz(r.warps[w].ready)];
    }
    int w = __builtin_ctz(warps);
    uint32_t ready = r.warps[w].ready;
    if (order == RANDOM) {
        for (int skip = int(next_random(r.random) % __builtin_popcount(warps)), rest = warps; skip; skip--) w = __builtin_ctz(rest &= rest - 1);
        ready = r.warps[w].ready;
        for (int skip = int(next_random(r.random) % __builtin_popcount(ready)); skip; skip--) ready &= ready - 1;
    }
    return &r.fibers[w * 32 + __builtin_ctz(ready)];
}

inline void set_ready(Runtime& r, int thread) {
    r.fibers[thread].state = State::Ready;
    r.warps[thread / 32].ready |= 1u << (thread % 32);
    r.ready_warps |= 1u << (thread / 32);
}

inline void set_ready_all(Runtime& r, State state, int named) {
    for (int t = 0; t < r.threads; t++)
        if (r.fibers[t].state == state && (state != State::AtNamedBarrier || r.fibers[t].named == named)) set_ready(r, t);
}

// Leaves the current fiber for whoever is ready; comes back once somebody has made it ready.
inline void leave(State state, const char* waits_for) {
    Runtime& r = own_runtime();
    Fiber& from = own_fiber();
    const int t = from.number;
    from.state = state;
    from.waits_for = waits_for;
    uint32_t& ready = r.warps[t / 32].ready;
    ready &= ~(1u << (t % 32));
    if (!ready) r.ready_warps &= ~(1u << (t / 32));
    Fiber* to = pick(r);
    if (!to && r.polling) {
        if (++r.fruitless > FRUITLESS_MAX) fail_stuck();
        r.polling = 0;
        set_ready_all(r, State::Polling, 0);
        to = pick(r);
    }
    if (!to && r.live) fail_stuck();
    if (!to) to = &r.main;
    if (to == &from) return;
    change(from, *to);
}

inline void release_block_barrier(Runtime& r) {
    r.barrier_result = r.predicates;
    r.at_barrier = r.predicates = r.fruitless = 0;
    set_ready_all(r, State::AtBlockBarrier, 0);
}

// For all live threads of the block; gives the number of those that came with a true predicate.
inline int block_barrier(bool predicate) {
    Runtime& r = own_runtime();
    r.predicates += predicate;
    if (++r.at_barrier == r.live) release_block_barrier(r);
    else leave(State::AtBlockBarrier, "__syncthreads");
    return r.barrier_result;
}

// bar.sync: for so many threads of the block.
inline void named_barrier(int id, int threads) {
    Runtime& r = own_runtime();
    if (++r.at_named[id] == threads) {
        r.at_named[id] = r.fruitless = 0;
        set_ready_all(r, State::AtNamedBarrier, id);
        return;
    }
    own_fiber().named = id;
    leave(State::AtNamedBarrier, "a named barrier");
}

// Lets the others run: what a loop that waits for shared memory to change must call.
inline void poll(const char* waits_for) {
    own_runtime().polling++;
    leave(State::Polling, waits_for);
}

inline void progress() { own_runtime().fruitless = 0; }

// Waits for all lanes of `mask`; `complete` then runs once, with what each lane of the mask handed over.
inline void meet(const char* what, uint32_t mask, void* payload, Complete complete) {
    Runtime& r = own_runtime();
    Fiber& fiber = own_fiber();
    const int t = fiber.number, lane = t % 32;
    Warp& warp = r.warps[t / 32];
    if (!(mask >> lane & 1)) fail("thread %d calls %s with mask %08x, in which its own lane is not", t, what, mask);
    Meeting* own = nullptr;
    for (Meeting& m : warp.meetings)
        if (m.arrived && m.mask == mask) {
            own = &m;
            break;
        }
    if (!own)
        for (Meeting& m : warp.meetings)
            if (!m.arrived && !own) own = &m;
    if (!own) fail("thread %d calls %s while its warp's lanes wait with %d other masks", t, what, MEETINGS_MAX);
    if (!own->arrived) {
        own->mask = mask;
        own->complete = complete;
    }
    if (own->complete != complete) fail("thread %d calls %s, other lanes of mask %08x something else", t, what, mask);
    own->arrived |= 1u << lane;
    own->payload[lane] = payload;
    if (own->arrived != mask) {
        fiber.mask = mask;
        return leave(State::AtWarp, what);
    }
    complete(own->payload, mask);
    own->arrived = 0;
    r.fruitless = 0;
    const uint32_t others = mask & ~(1u << lane);
    for (uint32_t rest = others; rest; rest &= rest - 1) r.fibers[t / 32 * 32 + __builtin_ctz(rest)].state = State::Ready;
    warp.ready |= others;
    r.ready_warps |= 1u << (t / 32);
}

// A thread's end. Those that wait for all live threads may go on now.
[[noreturn]] inline void end_thread() {
    Runtime& r = own_runtime();
    r.live--;
    if (r.at_barrier && r.at_barrier == r.live) release_block_barrier(r);
    for (const Copy& copy : own_fiber().copies)
        if (copy.bytes + copy.zeros) fail("thread %d ends with copies that it never waited for", own_thread());
    leave(State::Done, "");
    __builtin_unreachable();
}

}  // namespace emulator
