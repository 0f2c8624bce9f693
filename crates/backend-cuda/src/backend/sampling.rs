//! Drawing tokens on the device, by the rule of `overshot_backend::Sampler`: where the kernel's sums may round otherwise
//! is said in `kernels/sample/v1_naive.cu`.

use super::kernels::Kernels;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, bytes_of};
use overshot_backend::{Sampled, Sampling, SamplingError, TokenMask};
use std::sync::Arc;

/// One row's draw.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// `[vocab]`, on the device.
    pub logits: DeviceAddress,
    pub sampling: &'a Sampling,
    /// Each token of prompt and output, once, with the times it is in the output.
    pub seen: &'a [(u32, u32)],
    pub position: usize,
    pub mask: Option<&'a TokenMask>,
}

/// As the kernel declares it, like the next two: change both.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Draw {
    logits: DeviceAddress,
    seen: DeviceAddress,
    bias: DeviceAddress,
    mask: DeviceAddress,
    seed: u64,
    position: i64,
    seen_count: i32,
    bias_count: i32,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition: f32,
    presence: f32,
    frequency: f32,
    top_k: i32,
    top_logprobs: i32,
}

const TOP_MAX: usize = Sampling::MOST_TOP_LOGPROBS;
/// Words of one `Drawn`: status, token, log probability, number of alternatives, those, and their log probabilities.
const DRAWN_WORDS: usize = 4 + 2 * TOP_MAX;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SampleArguments {
    draws: DeviceAddress,
    drawn: DeviceAddress,
    adjusted: DeviceAddress,
    order: DeviceAddress,
    vocab: i32,
    padded: i32,
}

/// Scratch space for up to `rows_max` draws at a time, taken once.
pub struct DeviceSampler {
    vocab: usize,
    rows_max: usize,
    draws: Buffer<u8>,
    drawn: Buffer<u32>,
    adjusted: Buffer<f32>,
    order: Buffer<u64>,
    /// Seen tokens, biases and masks of all draws at a time.
    lists: Buffer<u32>,
}

/// Words of lists that a draw has on average at most; one alone may have as many as the vocabulary makes sense of.
const LIST_WORDS_EACH: usize = 1 << 13;

impl DeviceSampler {
    pub fn new(gpu: &Arc<dyn Gpu>, vocab: usize, rows_max: usize) -> Result<Self, GpuError> {
        let padded = vocab.next_power_of_two();
        // Every token seen, every token biased, and a mask.
        let longest = 4 * vocab + mask_words(vocab);
        Ok(DeviceSampler {
            vocab,
            rows_max,
            draws: Buffer::new(gpu, rows_max * size_of::<Draw>())?,
            // A draw writes as many of its words as were asked for, and all are copied out.
            drawn: Buffer::zeroed(gpu, rows_max * DRAWN_WORDS)?,
            adjusted: Buffer::new(gpu, rows_max * vocab)?,
            order: Buffer::new(gpu, rows_max * padded)?,
            lists: Buffer::new(gpu, longest.max(rows_max * LIST_WORDS_EACH))?,
        })
    }

    /// What every request gets. The parameters must be valid: see [`Sampling::validate`].
    pub fn draw(
        &mut self,
        kernels: &Kernels,
        requests: &[Request],
    ) -> Result<Vec<Result<Sampled, SamplingError>>, GpuError> {
        let mut results = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            let (group, others) = rest.split_at(self.group_len(rest));
            results.extend(self.draw_group(kernels, group)?);
            rest = others;
        }
        Ok(results)
    }

    /// How many of the first requests, one at least, fit the scratch space together.
    fn group_len(&self, requests: &[Request]) -> usize {
        let mut words = 0;
        let fits = requests.iter().take(self.rows_max).take_while(|request| {
            words += list_words(request, self.vocab);
            words <= self.lists.len()
        });
        fits.count().max(1)
    }

    fn draw_group(
        &mut self,
        kernels: &Kernels,
        requests: &[Request],
    ) -> Result<Vec<Result<Sampled, SamplingError>>, GpuError> {
        // Lists that have a token outside of the vocabulary never reach the kernel.
        let refused: Vec<Option<SamplingError>> =
            requests.iter().map(|request| self.unknown_token(request)).collect();
        let (mut draws, mut words) = (Vec::new(), Vec::new());
        for (request, _) in requests.iter().zip(&refused).filter(|(_, refused)| refused.is_none()) {
            draws.extend_from_slice(bytes_of(&self.describe(request, &mut words)));
        }
        let count = draws.len() / size_of::<Draw>();
        self.lists.copy_in(&words)?;
        self.draws.copy_in(&draws)?;
        let arguments = SampleArguments {
            draws: self.draws.address(),
            drawn: self.drawn.address(),
            adjusted: self.adjusted.address(),
            order: self.order.address(),
            vocab: self.vocab as i32,
            padded: self.vocab.next_power_of_two() as i32,
        };
        kernels.sample.launch(Grid(count as u32, 1, 1), &arguments)?;
        let drawn = self.drawn.copy_out_range(0..count * DRAWN_WORDS)?;
        let mut drawn = drawn.chunks_exact(DRAWN_WORDS).map(|words| self.read(words));
        let result = |refused: Option<SamplingError>| {
            refused.map_or_else(|| drawn.next().unwrap_or(Err(SamplingError::NothingAllowed)), Err)
        };
        Ok(refused.into_iter().map(result).collect())
    }

    fn unknown_token(&self, request: &Request) -> Option<SamplingError> {
        let vocab_size = self.vocab;
        let seen = penalised(request).iter().map(|(token, _)| ("the list of seen tokens", *token));
        let bias = request.sampling.logit_bias.iter().map(|(token, _)| ("logit_bias", *token));
        let (parameter, token) = seen.chain(bias).find(|(_, token)| *token as usize >= vocab_size)?;
        Some(SamplingError::NoSuchToken { parameter, token, vocab_size })
    }

    /// Adds the request's lists to `words`, each of an even number: masks are read 8 bytes at a time.
    fn describe(&self, request: &Request, words: &mut Vec<u32>) -> Draw {
        let (sampling, seen) = (request.sampling, penalised(request));
        let seen_at = self.lists.at(words.len());
        words.extend(seen.iter().flat_map(|(token, times)| [*token, *times]));
        let bias_at = self.lists.at(words.len());
        words.extend(sampling.logit_bias.iter().flat_map(|(token, x)| [*token, x.to_bits()]));
        let mask_at = request.mask.map_or(DeviceAddress::NULL, |_| self.lists.at(words.len()));
        if let Some(mask) = request.mask {
            let allowed = |word: usize, bit: usize| mask.allows((word * 32 + bit) as u32);
            let word =
                |word: usize| (0..32).filter(|bit| allowed(word, *bit)).fold(0, |all, bit| all | 1 << bit);
            words.extend((0..mask_words(self.vocab)).map(word));
        }
        Draw {
            logits: request.logits,
            seen: seen_at,
            bias: bias_at,
            mask: mask_at,
            seed: sampling.seed,
            position: request.position as i64,
            seen_count: seen.len() as i32,
            bias_count: sampling.logit_bias.len() as i32,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition: sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            top_k: sampling.top_k.min(self.vocab) as i32,
            top_logprobs: sampling.top_logprobs.min(TOP_MAX) as i32,
        }
    }

    fn read(&self, words: &[u32]) -> Result<Sampled, SamplingError> {
        let (head, lists) = words.split_at(4);
        let (tokens, logprobs) = lists.split_at(TOP_MAX);
        match head[0] {
            0 => Ok(Sampled {
                token: head[1],
                logprob: f32::from_bits(head[2]),
                top: tokens
                    .iter()
                    .zip(logprobs)
                    .take(head[3] as usize)
                    .map(|(token, logprob)| (*token, f32::from_bits(*logprob)))
                    .collect(),
            }),
            1 => Err(SamplingError::BadLogit { token: head[1] as usize, value: f32::from_bits(head[2]) }),
            2 => Err(SamplingError::NoFiniteLogit { vocab_size: self.vocab }),
            _ => Err(SamplingError::NothingAllowed),
        }
    }
}

/// Seen tokens that change anything.
fn penalised<'a>(request: &Request<'a>) -> &'a [(u32, u32)] {
    if request.sampling.has_penalties() { request.seen } else { &[] }
}

fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(64) * 2
}

fn list_words(request: &Request, vocab: usize) -> usize {
    let pairs = penalised(request).len() + request.sampling.logit_bias.len();
    2 * pairs + request.mask.map_or(0, |_| mask_words(vocab))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::{EmulatedGpu, Order};
    use overshot_backend::Sampler;

    fn random_sampling(random: &mut fastrand::Rng, vocab: usize) -> Sampling {
        let mut maybe = |some: f32, none: f32| if random.bool() { some } else { none };
        let (temperature, top_p, min_p) = (maybe(1.3, 0.0), maybe(0.7, 1.0), maybe(0.05, 0.0));
        let (repetition_penalty, presence_penalty) = (maybe(1.4, 1.0), maybe(0.5, 0.0));
        let frequency_penalty = maybe(0.3, 0.0);
        let tokens = random.usize(0..4);
        Sampling {
            temperature,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            top_k: [0, 1, 7, vocab, 2 * vocab][random.usize(0..5)],
            logit_bias: (0..tokens)
                .map(|_| (random.u32(0..vocab as u32), random.f32() * 8.0 - 4.0))
                .collect(),
            seed: random.u64(..),
            top_logprobs: [0, 1, 20, 128][random.usize(0..4)],
        }
    }

    fn random_logits(random: &mut fastrand::Rng, vocab: usize) -> Vec<f32> {
        // Whole numbers now and then, for ties; some tokens impossible, once in a while a number that is none.
        let (whole, spoilt) = (random.bool(), random.u8(0..12));
        let mut logits: Vec<f32> = (0..vocab)
            .map(|_| if random.u8(0..20) == 0 { f32::NEG_INFINITY } else { random.f32() * 12.0 - 6.0 })
            .map(|logit| if whole { logit.round() } else { logit })
            .collect();
        match spoilt {
            0 => logits[random.usize(0..vocab)] = f32::NAN,
            1 => logits[random.usize(0..vocab)] = f32::INFINITY,
            2 => logits.fill(f32::NEG_INFINITY),
            _ => {}
        }
        logits
    }

    #[test]
    fn draws_are_those_of_the_host_with_every_option() {
        let gpu: Arc<dyn Gpu> = match EmulatedGpu::new(Order::Random(1)) {
            Ok(gpu) => Arc::new(gpu),
            Err(error) => return eprintln!("SKIPPED: sampling was not checked ({error})"),
        };
        let kernels = Kernels::load(&*gpu, 1).unwrap();
        let mut random = overshot_testing::rng();
        for vocab in [2, 100, 300] {
            let mut sampler = DeviceSampler::new(&gpu, vocab, 8).unwrap();
            let cases: Vec<_> = (0..24)
                .map(|_| {
                    let tokens: Vec<u32> = (0..vocab as u32).filter(|_| random.u8(0..5) == 0).collect();
                    let seen: Vec<(u32, u32)> =
                        tokens.into_iter().map(|token| (token, random.u32(0..3))).collect();
                    let mask = (random.u8(0..3) == 0).then(|| {
                        let mut mask = TokenMask::none(vocab);
                        (0..vocab as u32 / 3).for_each(|_| mask.allow(random.u32(0..vocab as u32)));
                        mask
                    });
                    (random_logits(&mut random, vocab), random_sampling(&mut random, vocab), seen, mask)
                })
                .collect();
            let logits: Vec<Buffer<f32>> =
                cases.iter().map(|(logits, ..)| Buffer::of(&gpu, logits).unwrap()).collect();
            let requests: Vec<Request> = cases
                .iter()
                .zip(&logits)
                .enumerate()
                .map(|(position, ((_, sampling, seen, mask), logits))| Request {
                    logits: logits.address(),
                    sampling,
                    seen,
                    position,
                    mask: mask.as_ref(),
                })
                .collect();
            let drawn = sampler.draw(&kernels, &requests).unwrap();
            for ((position, ours), (logits, sampling, seen, mask)) in
                drawn.into_iter().enumerate().zip(&cases)
            {
                let host = Sampler::default().sample_among(logits, sampling, seen, position, mask.as_ref());
                let label = format!("vocabulary of {vocab}, {sampling:?}, masked {}", mask.is_some());
                match (ours, host) {
                    (Ok(ours), Ok(host)) => {
                        let tokens = |sampled: &Sampled| {
                            sampled.top.iter().map(|(token, _)| *token).collect::<Vec<_>>()
                        };
                        assert_eq!((ours.token, tokens(&ours)), (host.token, tokens(&host)), "{label}");
                        let near = |a: f32, b: f32| a == b || (a - b).abs() <= 1e-6 * b.abs().max(1.0);
                        assert!(
                            near(ours.logprob, host.logprob),
                            "{label}: {} for {}",
                            ours.logprob,
                            host.logprob
                        );
                        assert!(ours.top.iter().zip(&host.top).all(|(a, b)| near(a.1, b.1)), "{label}");
                    }
                    // NaN is not equal to itself.
                    (ours, host) => assert_eq!(format!("{ours:?}"), format!("{host:?}"), "{label}"),
                }
            }
        }
    }
}
