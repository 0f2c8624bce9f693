//! How much of the host's work the overlapped loop hides behind a device, and what it costs when there is nothing to
//! hide. A device of fixed latency, and a driver that burns a fixed time on a core between steps.
//!
//! `cargo bench -p overshot-engine --bench overlap [-- --device-ms N]`. Both loops, and the plain one a second time
//! under another name, take turns round by round; medians over the rounds with the 10th and 90th percentile.

use overshot_backend::{FakeDevice, Latency};
use overshot_engine::{Engine, Limits, Request, StepLoop};
use overshot_kv::PoolCapacity;
use overshot_model::Spec;
use std::time::{Duration, Instant};

const ROWS: usize = 64;
const STEPS: usize = 60;
const ROUNDS: usize = 15;
const HOST_MICROSECONDS: [u64; 5] = [0, 250, 500, 1000, 2000];

fn burn(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Milliseconds a step of a full batch in decode.
fn step_ms(spec: &Spec, device: Duration, host: Duration, step_loop: StepLoop) -> f64 {
    let latency = Latency { floor: device, per_token: Duration::ZERO };
    let capacity = PoolCapacity::for_sets(ROWS, ROWS * (STEPS + 64));
    let backend = Box::new(FakeDevice::new(spec.clone(), capacity, latency));
    let mut engine = Engine::new(backend, Limits::for_batch(ROWS, 512), step_loop).expect("sound limits");
    for _ in 0..ROWS {
        let request = Request { max_new_tokens: STEPS + 40, ..Request::new(vec![1, 2, 3]) };
        engine.submit(request).expect("it fits");
    }
    for _ in 0..10 {
        engine.step().expect("the fake device refuses nothing");
    }
    let began = Instant::now();
    for _ in 0..STEPS {
        std::hint::black_box(engine.step().expect("the fake device refuses nothing"));
        burn(host);
    }
    began.elapsed().as_secs_f64() * 1e3 / STEPS as f64
}

struct Spread {
    low: f64,
    middle: f64,
    high: f64,
}

impl Spread {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
        Spread { low: at(0.1), middle: at(0.5), high: at(0.9) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:6.3} ({:.3} to {:.3})", self.middle, self.low, self.high)
    }
}

fn main() {
    let mut args = std::env::args().skip_while(|arg| arg != "--device-ms").skip(1);
    let device_ms: f64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    let device = Duration::from_secs_f64(device_ms / 1e3);
    let spec = Spec::hollow(256, 1 << 20);
    println!("{ROWS} rows, a device of {device_ms} ms a step, {ROUNDS} rounds of {STEPS} steps; ms a step\n");
    println!(
        "host ms | plain                    | plain again              | overlapped               | hidden"
    );
    for microseconds in HOST_MICROSECONDS {
        let host = Duration::from_micros(microseconds);
        let mut samples = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            for (samples, step_loop) in
                samples.iter_mut().zip([StepLoop::Plain, StepLoop::Plain, StepLoop::Overlapped])
            {
                samples.push(step_ms(&spec, device, host, step_loop));
            }
        }
        let [plain, again, overlapped] = samples.map(Spread::of);
        let host_ms = host.as_secs_f64() * 1e3;
        // Against the time that was there to hide: burnt on purpose, and the engine's own.
        let hidden = match microseconds {
            0 => format!("costs {:+.2} %", (overlapped.middle / plain.middle - 1.0) * 100.0),
            _ => {
                let share = (plain.middle - overlapped.middle) / (plain.middle - device_ms);
                format!("{:.0} %", share * 100.0)
            }
        };
        println!("{host_ms:7.2} | {plain:24} | {again:24} | {overlapped:24} | {hidden}");
    }
}
