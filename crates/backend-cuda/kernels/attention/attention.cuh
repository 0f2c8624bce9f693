// What every version of a step's attention is given. Mirrored by src/backend/arguments.rs: change both.
#pragma once
#include "step.cuh"

enum Entries : int { ENTRIES_NONE, ENTRIES_ALL, ENTRIES_SELECTED };

struct AttentionArgs {
    Step step;
    const float* q;                  // [tokens, heads, 512]: products of wq_b
    const float* sink;               // [heads]
    const float* latents;            // [tokens, 512]
    const u8* packed;                // [tokens, 584]: the same as packed entries, where pools hold such
    Pages window, entries;
    const int* selected;             // [tokens, selected_stride]
    const int* counts;               // [tokens]
    float* out;                      // [tokens, heads, 512]: rotated back
    int heads, selected_stride;
    int kind;                        // Entries
    int pool, ratio, compressed;
    float rms_eps, scale;
};
