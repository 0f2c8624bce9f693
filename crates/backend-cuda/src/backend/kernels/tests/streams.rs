//! One site of the residual streams against float64, and each token alone against its like in company.

use super::*;

const STREAMS: usize = 4;
const MIXING: usize = STREAMS + STREAMS * STREAMS;
const ROWS: usize = 24;
const ITERATIONS: usize = 20;
const EPS: f32 = 1e-6;

/// What a site reads: numbers of all tokens, then those of the model.
struct Inputs {
    streams: Vec<f32>,
    y: Vec<f32>,
    also: Vec<f32>,
    mixing: Vec<f32>,
    mix: Vec<f32>,
    base: Vec<f32>,
    scale: Vec<f32>,
    gain: Vec<f32>,
}

/// What it leaves, by token.
#[derive(PartialEq)]
struct Left {
    streams: Vec<f32>,
    mixing: Vec<f32>,
    x: Vec<f32>,
}

fn inputs(hidden: usize, tokens: usize) -> Inputs {
    let mut random = overshot_testing::rng();
    let mut numbers = |count: usize, most: f32| -> Vec<f32> {
        (0..count).map(|_| random.i32(-1000..1001) as f32 / 1000.0 * most).collect()
    };
    Inputs {
        streams: numbers(tokens * STREAMS * hidden, 2.0),
        y: numbers(tokens * hidden, 1.0),
        also: numbers(tokens * hidden, 1.0),
        mixing: numbers(tokens * MIXING, 1.0),
        mix: numbers(ROWS * STREAMS * hidden, 0.1),
        base: numbers(ROWS, 1.0),
        scale: vec![0.7, 0.9, 1.1],
        gain: numbers(hidden, 1.0),
    }
}

fn run(gpu: &Arc<dyn Gpu>, hidden: usize, tokens: &std::ops::Range<usize>, given: &Inputs) -> Left {
    let threads =
        |name, count| Launcher::<args::Streams>::load(&**gpu, &slices_source(), name, count).unwrap();
    let (mix, enter) = (threads("mix", MIX_THREADS), threads("enter", ENTER_THREADS));
    let of =
        |all: &[f32], each: usize| Buffer::of(gpu, &all[tokens.start * each..tokens.end * each]).unwrap();
    let model = |all: &[f32]| Buffer::of(gpu, all).unwrap();
    let (slices, count) = (hidden.div_ceil(STREAM_SLICE), tokens.len());
    let (streams, mixing) = (of(&given.streams, STREAMS * hidden), of(&given.mixing, MIXING));
    let (y, also, matrix) = (of(&given.y, hidden), of(&given.also, hidden), model(&given.mix));
    let (base, scale, gain) = (model(&given.base), model(&given.scale), model(&given.gain));
    let partial = Buffer::<f32>::new(gpu, count * slices * STREAM_PARTIALS).unwrap();
    let x = Buffer::<f32>::new(gpu, count * hidden).unwrap();
    let site = args::Streams {
        streams: streams.address(),
        y: y.address(),
        also: also.address(),
        mixing: mixing.address(),
        mix: matrix.address(),
        base: base.address(),
        scale: scale.address(),
        gain: gain.address(),
        x: x.address(),
        partial: partial.address(),
        hidden: hidden as i32,
        iterations: ITERATIONS as i32,
        rms_eps: EPS,
        hc_eps: EPS,
        tokens: count as i32,
        slices: slices as i32,
        ..Default::default()
    };
    mix.launch(Grid(slices as u32, count.div_ceil(STREAM_TOKENS) as u32, 1), &site).unwrap();
    enter.launch(Grid(count as u32, 1, 1), &site).unwrap();
    let out = |buffer: Buffer<f32>| buffer.copy_out().unwrap();
    Left { streams: out(streams), mixing: out(mixing), x: out(x) }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Divides each line of four by its sum: lines start `between` apart, their numbers lie `within` apart.
fn normalize(comb: &mut [f64], between: usize, within: usize) {
    for line in 0..STREAMS {
        let at = |i: usize| line * between + i * within;
        let sum: f64 = (0..STREAMS).map(|i| comb[at(i)]).sum();
        (0..STREAMS).for_each(|i| comb[at(i)] /= sum + f64::from(EPS));
    }
}

/// The streams, what the next site mixes with, and x of one token.
fn expected(hidden: usize, token: usize, given: &Inputs) -> [Vec<f64>; 3] {
    let number = |all: &[f32], at: usize| f64::from(all[at]);
    let mixing = |i: usize| number(&given.mixing, token * MIXING + i);
    let mut streams = vec![0.0; STREAMS * hidden];
    for (at, new) in streams.iter_mut().enumerate() {
        let (k, dim) = (at / hidden, at % hidden);
        let y = number(&given.y, token * hidden + dim) + number(&given.also, token * hidden + dim);
        let old = |j: usize| number(&given.streams, (token * STREAMS + j) * hidden + dim);
        *new = mixing(k) * y + (0..STREAMS).map(|j| mixing(STREAMS + STREAMS * j + k) * old(j)).sum::<f64>();
    }
    let mean = streams.iter().map(|x| x * x).sum::<f64>() / streams.len() as f64;
    let coefficient = |row: usize| {
        let product: f64 =
            (0..streams.len()).map(|i| number(&given.mix, row * streams.len() + i) * streams[i]).sum();
        let scale = number(&given.scale, (row / STREAMS).min(2));
        product / (mean + f64::from(EPS)).sqrt() * scale + number(&given.base, row)
    };
    let mut comb: Vec<f64> = (8..ROWS).map(|row| coefficient(row).exp()).collect();
    for row in comb.chunks_exact_mut(STREAMS) {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|c| *c = *c / sum + f64::from(EPS));
    }
    for iteration in 0..ITERATIONS {
        if iteration > 0 {
            normalize(&mut comb, STREAMS, 1);
        }
        normalize(&mut comb, 1, STREAMS);
    }
    let left = (4..8).map(|row| 2.0 * sigmoid(coefficient(row))).chain(comb).collect();
    let pre: Vec<f64> = (0..4).map(|row| sigmoid(coefficient(row)) + f64::from(EPS)).collect();
    let sums: Vec<f64> =
        (0..hidden).map(|dim| (0..STREAMS).map(|k| pre[k] * streams[k * hidden + dim]).sum()).collect();
    let norm = (sums.iter().map(|x| x * x).sum::<f64>() / hidden as f64 + f64::from(EPS)).sqrt();
    let x = sums.iter().zip(&given.gain).map(|(x, gain)| x / norm * f64::from(*gain)).collect();
    [streams, left, x]
}

fn assert_near(what: &str, ours: &[f32], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len());
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let allowed = 2e-5 * theirs.abs().max(1.0);
        assert!((f64::from(*ours) - theirs).abs() <= allowed, "{what} {i}: {ours}, {theirs}");
    }
}

#[test]
fn a_site_is_that_of_float64_and_of_no_company() {
    for (order, hidden, tokens) in
        [(Order::Random(1), 36, 17), (Order::Descending, 256, 3), (Order::Ascending, 4132, 2)]
    {
        let gpu: Arc<dyn Gpu> = match EmulatedGpu::new(order) {
            Ok(gpu) => Arc::new(gpu),
            Err(absent) => return eprintln!("SKIPPED: the streams were not checked ({absent})"),
        };
        let given = inputs(hidden, tokens);
        let together = run(&gpu, hidden, &(0..tokens), &given);
        for token in 0..tokens {
            let of = |all: &[f32], each: usize| all[token * each..][..each].to_vec();
            let ours = Left {
                streams: of(&together.streams, STREAMS * hidden),
                mixing: of(&together.mixing, MIXING),
                x: of(&together.x, hidden),
            };
            let [streams, mixing, x] = expected(hidden, token, &given);
            assert_near("streams", &ours.streams, &streams);
            assert_near("mixing", &ours.mixing, &mixing);
            assert_near("x", &ours.x, &x);
            assert!(
                run(&gpu, hidden, &(token..token + 1), &given) == ours,
                "token {token} of {tokens}, {hidden}"
            );
        }
    }
}
