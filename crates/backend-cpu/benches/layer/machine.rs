//! What this machine can do at most, measured: read bandwidth over a working set, multiply-add peak.

use std::hint::black_box;
use std::time::Instant;

/// Bytes per second of all threads summing `bytes` once, as 64-bit words.
pub fn read_bytes_per_s(threads: &rayon::ThreadPool, bytes: &[u8]) -> f64 {
    use rayon::prelude::*;
    let start = Instant::now();
    let total: u64 = threads.install(|| bytes.par_chunks(1 << 20).map(sum_words).sum());
    black_box(total);
    bytes.len() as f64 / start.elapsed().as_secs_f64()
}

fn sum_words(bytes: &[u8]) -> u64 {
    // Eight independent sums: the adds must not be what is measured.
    let mut sums = [0_u64; 8];
    for line in bytes.chunks_exact(64) {
        for (sum, word) in sums.iter_mut().zip(line.chunks_exact(8)) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        }
    }
    sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
}

/// Float operations per second (2 a multiply-add) of all threads.
pub fn fma_flops_per_s(threads: &rayon::ThreadPool) -> f64 {
    const ROUNDS: usize = 40_000_000;
    let start = Instant::now();
    threads.broadcast(|_| black_box(fma_chains(ROUNDS)));
    let operations = (ROUNDS * CHAINS * LANES * 2) as f64 * threads.current_num_threads() as f64;
    operations / start.elapsed().as_secs_f64()
}

const CHAINS: usize = 10;
const LANES: usize = 8;

#[allow(unsafe_code)]
fn fma_chains(rounds: usize) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn run(rounds: usize) -> f32 {
            use std::arch::x86_64::*;
            let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
            let mut chains = [_mm256_set1_ps(1.0); CHAINS];
            for _ in 0..rounds {
                for chain in &mut chains {
                    *chain = _mm256_fmadd_ps(*chain, a, b);
                }
            }
            let mut lanes = [0.0; LANES];
            let total =
                chains.into_iter().fold(_mm256_setzero_ps(), |total, chain| _mm256_add_ps(total, chain));
            // SAFETY: `lanes` holds 8 numbers.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), total) };
            lanes.iter().sum()
        }
        // SAFETY: AVX2 and FMA were detected just above.
        return unsafe { run(rounds) };
    }
    let mut chains = [[1.0_f32; LANES]; CHAINS];
    for _ in 0..rounds {
        chains.iter_mut().flatten().for_each(|x| *x = *x * 0.999 + 0.001);
    }
    chains.iter().flatten().sum()
}
