//! The emulator itself: what it computes for the language of kernels, and that it names the faults it is there to find.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use overshot_backend_cuda::cubins::Source;
use overshot_backend_cuda::cuda::Header;
use overshot_backend_cuda::emulator::{EmulatedGpu, Order};
use overshot_backend_cuda::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, Shape, bytes_of};
use std::sync::Arc;

const HEADERS: &[Header] = &[
    Header { name: "types.cuh", text: include_str!("../kernels/common/types.cuh") },
    Header { name: "ptx.cuh", text: include_str!("../kernels/common/ptx.cuh") },
    Header { name: "device.cuh", text: include_str!("../kernels/common/device.cuh") },
];
const TEXT: &str = include_str!("data/emulated.cu");

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    input: DeviceAddress,
    out: DeviceAddress,
    count: i32,
    unused: i32,
}

/// `None`, said loudly, where there is no compiler.
fn open(order: Order) -> Option<Arc<dyn Gpu>> {
    match EmulatedGpu::new(order) {
        Ok(gpu) => Some(Arc::new(gpu)),
        Err(error) => {
            eprintln!("SKIPPED: the emulator was not checked ({error})");
            None
        }
    }
}

fn source() -> Source {
    Source { name: "emulated".into(), text: TEXT, headers: HEADERS, definitions: vec![] }
}

/// Runs kernel `entry` over `input` and gives `len` numbers of output.
fn run(
    gpu: &Arc<dyn Gpu>,
    entry: &str,
    shape: Shape,
    grid: Grid,
    input: &[u32],
    len: usize,
) -> Result<Vec<u32>, GpuError> {
    let kernel = gpu.load(&source(), entry, shape)?;
    let (input, out) = (Buffer::of(gpu, input)?, Buffer::<u32>::new(gpu, len)?);
    let args = Args { input: input.address(), out: out.address(), count: input.len() as i32, unused: 0 };
    // SAFETY: `Args` is the kernels' struct, and both buffers live until the emulator has run the launch.
    unsafe { kernel.launch(grid, bytes_of(&args)) }?;
    out.copy_out()
}

const WARP: Shape = Shape { threads: 32, shared_bytes: 0 };
const BLOCK: Shape = Shape { threads: 256, shared_bytes: 0 };
const ONE: Grid = Grid(1, 1, 1);

fn numbers(count: usize) -> Vec<u32> {
    let mut random = overshot_testing::rng();
    (0..count).map(|_| random.u32(0..1 << 20)).collect()
}

#[test]
fn blocks_sum_through_shared_memory_and_shuffles_in_any_order() {
    let input = numbers(1000);
    let expected: u32 = input.iter().sum();
    for order in [Order::Ascending, Order::Descending, Order::Random(overshot_testing::seed())] {
        let Some(gpu) = open(order) else { return };
        let out = run(&gpu, "sum", BLOCK, Grid(2, 2, 1), &input, 4).unwrap();
        assert_eq!(out, [0, 1, 2, 3].map(|block| expected + block), "{order}");
    }
}

#[test]
fn warp_operations_are_those_of_the_hardware() {
    let input = numbers(32);
    let Some(gpu) = open(Order::Random(3)) else { return };
    let out = run(&gpu, "warps", WARP, ONE, &input, 32 * 8).unwrap();
    for lane in 0..32 {
        let own: Vec<u32> = out.chunks_exact(32).map(|values| values[lane]).collect();
        let up = if lane < 3 { input[lane] } else { input[lane - 3] };
        let down = if lane % 8 + 2 > 7 { input[lane] } else { input[lane + 2] };
        let odd = input.iter().enumerate().fold(0, |mask, (at, value)| mask | (value & 1) << at);
        let half = if lane < 16 { &input[..16] } else { &input[16..] };
        let parity = input
            .iter()
            .enumerate()
            .fold(0, |mask, (at, v)| mask | u32::from(v % 4 == input[lane] % 4) << at);
        let expected = [
            input[5],
            input[lane ^ 9],
            up,
            down,
            odd,
            half.iter().sum::<u32>(),
            *input.iter().max().unwrap(),
            parity,
        ];
        assert_eq!(own, expected, "lane {lane}");
    }
}

#[test]
fn matrices_multiply_as_their_fragments_say() {
    let Some(gpu) = open(Order::Descending) else { return };
    // 16 x 16 and 8 x 16 small whole numbers in bf16: every sum is exact.
    let mut random = fastrand::Rng::with_seed(5);
    let values: Vec<f32> = (0..16 * 16 + 8 * 16).map(|_| random.i32(-8..9) as f32).collect();
    let halves: Vec<u32> = values.iter().map(|value| value.to_bits() >> 16).collect();
    let packed: Vec<u32> = halves.chunks_exact(2).map(|pair| pair[0] | pair[1] << 16).collect();
    let out = run(&gpu, "matrices", Shape { threads: 32, shared_bytes: 1024 }, ONE, &packed, 128).unwrap();
    let (a, b) = values.split_at(256);
    for (at, bits) in out.into_iter().enumerate() {
        let (row, column) = (at / 8, at % 8);
        let expected: f32 = (0..16).map(|k| a[row * 16 + k] * b[column * 16 + k]).sum();
        assert_eq!(f32::from_bits(bits), expected, "row {row}, column {column}");
    }
}

#[test]
fn conversions_are_those_of_the_stored_formats() {
    use overshot_model::quant::{E4M3_VALUES, bf16_encode, e4m3_encode};
    let Some(gpu) = open(Order::Ascending) else { return };
    let mut random = fastrand::Rng::with_seed(11);
    let input: Vec<f32> = (0..4096)
        .map(|at| match at {
            0..256 => E4M3_VALUES[at],
            256..300 => 0.0009765625 * (at as f32 - 256.0),
            _ => (random.f32() - 0.5) * f32::powi(2.0, random.i32(-14..11)),
        })
        .filter(|x| !x.is_nan())
        .collect();
    let bits: Vec<u32> = input.iter().map(|x| x.to_bits()).collect();
    let out = run(&gpu, "convert", BLOCK, ONE, &bits, 4 * input.len()).unwrap();
    for (at, x) in input.iter().enumerate() {
        let of = |which: usize| out[which * input.len() + at];
        assert_eq!(of(0), u32::from(e4m3_encode(*x)), "{x} as e4m3");
        assert_eq!(of(1), u32::from(bf16_encode(*x)), "{x} as bf16");
        assert_eq!(f32::from_bits(of(2)), E4M3_VALUES[usize::from(e4m3_encode(*x))], "{x} through e4m3");
        let (half, error) = (f32::from_bits(of(3)), (f32::from_bits(of(3)) - x).abs());
        assert!(error <= (x.abs() * 0.000_488_3).max(2.99e-8), "{x} through f16 is {half}");
    }
}

#[test]
fn faults_end_with_a_message_that_names_kernel_block_and_thread() {
    let Some(gpu) = open(Order::Ascending) else { return };
    let fault = |entry: &str, shape: Shape| {
        run(&gpu, entry, shape, Grid(2, 1, 1), &numbers(256), 256).unwrap_err().to_string()
    };
    let message = fault("divergent_barrier", BLOCK);
    assert!(message.contains("kernel divergent_barrier, block (0, 0, 0)"), "{message}");
    assert!(
        message.contains("thread 0 waits at __syncthreads, where 255 of 256 live threads came"),
        "{message}"
    );
    assert!(message.contains("thread 9 waits at __syncwarp"), "{message}");
    let message = fault("missing_lane", WARP);
    assert!(
        message.contains("__shfl_xor_sync") && message.contains("lanes 80000000 never came"),
        "{message}"
    );
    let message = fault("endless_wait", WARP);
    assert!(message.contains("thread 0 waits at an mbarrier"), "{message}");
    let message = fault("behind_shared", Shape { threads: 32, shared_bytes: 128 });
    assert!(message.contains("writes 4 bytes behind its 128 bytes"), "{message}");
    let message = fault("behind_global", WARP);
    assert!(
        message.contains("kernel behind_global wrote outside") && message.contains("byte 8"),
        "{message}"
    );
    let message = fault("other_arguments", WARP);
    assert!(message.contains("takes 8 bytes of arguments and got 24"), "{message}");
    let message = fault("no_such_kernel", WARP);
    assert!(message.contains("no kernel no_such_kernel"), "{message}");
}

#[test]
fn a_missing_barrier_shows_in_the_order_of_threads() {
    let input = numbers(256);
    let results = [Order::Ascending, Order::Descending]
        .map(|order| open(order).map(|gpu| run(&gpu, "missing_barrier", BLOCK, ONE, &input, 256).unwrap()));
    if let [Some(ascending), Some(descending)] = results {
        assert_ne!(ascending, descending);
    }
}

#[test]
fn copies_that_nobody_waited_for_are_not_there_and_shared_memory_starts_as_nan() {
    let Some(gpu) = open(Order::Ascending) else { return };
    let input = numbers(4);
    let out = run(&gpu, "late_copy", Shape { threads: 32, shared_bytes: 16 }, ONE, &input, 8).unwrap();
    assert_eq!(out[..4], [u32::MAX; 4]);
    assert_eq!(out[4..], input);
}
