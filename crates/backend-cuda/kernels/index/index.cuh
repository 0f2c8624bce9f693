// What every version of the indexer is given. Mirrored by src/backend/arguments.rs: change both.
//
// Tokens that see no more entries than are chosen have no scores.
#pragma once
#include "step.cuh"

struct IndexArgs {
    Step step;
    float* q;                        // [tokens, heads, 128]: products; rotated and rounded in place
    const float* weights;            // [tokens, heads]: products, not yet scaled
    float* scores;                   // [tokens from `first` on, score_stride]
    int* selected;                   // [tokens, top]: entries ascending
    int* counts;                     // [tokens]
    Pages keys;
    int heads, top, score_stride;
    int first, end;                  // tokens that `scores` has rows of: contexts may be too long for all at once
    float scale;
};

__device__ __forceinline__ int visible_of(const Step& s, int token) { return (s.positions[token] + 1) / 4; }
