//! What this machine can do at most, measured: read bandwidth over a working set, multiply-add peak.

use super::MachineLimits;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A larger working set is out of every cache, as this one is.
const WORKING_SET_BYTES_MAX: u64 = 1 << 30;
const WORKING_SET_BYTES_MIN: u64 = 1 << 20;

/// Reading goes on until it took this long: a small working set is read many times.
const READ_TIME: Duration = Duration::from_millis(30);

/// About 30 ms at a vector register a cycle and pipe.
const FMA_ROUNDS: usize = 16_000_000;

/// Threads and memory to measure the machine with.
pub struct Machine {
    threads: rayon::ThreadPool,
    words: Vec<u64>,
}

impl Machine {
    /// Takes memory as large as the working set, up to 1 GiB: caches serve a small model's weights, and memory a large
    /// one's. `threads`: `None` is one per core.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(threads: Option<usize>, working_set_bytes: u64) -> Result<Self, rayon::ThreadPoolBuildError> {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build()?;
        let bytes = working_set_bytes.clamp(WORKING_SET_BYTES_MIN, WORKING_SET_BYTES_MAX);
        // Not zeros: pages that were never written share one page of memory.
        Ok(Machine { threads, words: (0..bytes / 8).collect() })
    }

    /// Takes some tens of milliseconds.
    pub fn measure(&self) -> MachineLimits {
        MachineLimits { read_bytes_per_s: self.read_bytes_per_s(), flops_per_s: self.flops_per_s() }
    }

    /// All threads sum the working set as 64-bit words, each its own part.
    fn read_bytes_per_s(&self) -> f64 {
        let share = self.words.len().div_ceil(self.threads.current_num_threads());
        let start = Instant::now();
        let mut passes = 0;
        while passes == 0 || start.elapsed() < READ_TIME {
            let sums = self.threads.broadcast(|context| {
                let part = self.words.chunks(share).nth(context.index()).unwrap_or_default();
                sum_words(part)
            });
            black_box(sums);
            passes += 1;
        }
        (passes * self.words.len() * 8) as f64 / start.elapsed().as_secs_f64()
    }

    /// Float operations (2 a multiply-add) of all threads.
    fn flops_per_s(&self) -> f64 {
        let start = Instant::now();
        self.threads.broadcast(|_| black_box(fma_chains(FMA_ROUNDS)));
        let operations = (FMA_ROUNDS * CHAINS * LANES * 2) as f64 * self.threads.current_num_threads() as f64;
        operations / start.elapsed().as_secs_f64()
    }
}

fn sum_words(words: &[u64]) -> u64 {
    // Eight independent sums: the adds must not be what is measured.
    let mut sums = [0_u64; 8];
    for line in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_a_machine() {
        let machine = Machine::new(Some(2), 3 << 20).unwrap();
        let MachineLimits { read_bytes_per_s, flops_per_s } = machine.measure();
        assert!((1e8..1e13).contains(&read_bytes_per_s), "{read_bytes_per_s}");
        assert!((1e8..1e14).contains(&flops_per_s), "{flops_per_s}");
    }
}
