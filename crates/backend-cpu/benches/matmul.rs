//! One thread, one matrix: how fast each stored format meets different numbers of inputs. Best of several runs.

use overshot_backend_cpu::Isa;
use overshot_backend_cpu::matmul::{self, Input, Job, Output, Rows};
use overshot_model::{Bytes, Format, Matrix};

const ROWS: usize = 4096;
const COLS: usize = 4096;
const REPEATS: usize = 4;

fn random_matrix(format: Format, random: &mut fastrand::Rng) -> Matrix {
    let mut data: Vec<u8> = (0..ROWS * format.row_bytes(COLS)).map(|_| random.u8(..)).collect();
    match format {
        // Small numbers of any sign: exponents that neither vanish nor explode.
        Format::F32 => data.chunks_exact_mut(4).for_each(|b| b[3] = 0x3c | (b[3] & 0x80)),
        Format::Bf16 => data.chunks_exact_mut(2).for_each(|b| b[1] = 0x3c | (b[1] & 0x80)),
        // Nor subnormals, which trained weights hardly have.
        Format::Fp8 => data.iter_mut().for_each(|b| *b = *b & 0xbf | 0x20),
        Format::Fp4 => {}
    }
    let scale_rows = if format == Format::Fp8 { ROWS.div_ceil(128) } else { ROWS };
    let scales = vec![120; scale_rows * format.scale_row_bytes(COLS)];
    Matrix::new(format, ROWS, COLS, Bytes::from_vec(data), Bytes::from_vec(scales))
}

/// Processor time of this thread: other programs on the machine do not count, though they may slow it down.
fn thread_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    let nanoseconds = stat.split_whitespace().next().and_then(|field| field.parse::<f64>().ok());
    nanoseconds.expect("schedstat begins with nanoseconds") * 1e-9
}

fn main() {
    let mut random = fastrand::Rng::with_seed(3);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread starts");
    println!("{:>6} {:>7} {:>9} {:>9} {:>9}", "format", "inputs", "ms", "GB/s", "GFLOP/s");
    for format in [Format::F32, Format::Bf16, Format::Fp8, Format::Fp4] {
        let matrix = random_matrix(format, &mut random);
        for count in [1, 2, 3, 4, 5, 8, 12, 16, 64, 256] {
            let x: Vec<f32> = (0..count * COLS).map(|_| random.f32() - 0.5).collect();
            let mut y = vec![0.0; count * ROWS];
            let input = Input::new(format, &x, COLS, 0..COLS);
            // Processor time advances in ticks of a few ms, so many products are timed together.
            let products = 1 + 128 / count;
            let seconds = (0..REPEATS)
                .map(|_| {
                    threads.install(|| {
                        let start = thread_seconds();
                        for _ in 0..products {
                            let output = Output::new(&mut y, ROWS);
                            let (columns, rows) = (0..COLS, Rows::First(count));
                            let job = Job { matrix: &matrix, columns, input: &input, rows, output };
                            matmul::run(Isa::detect(), vec![job]);
                        }
                        (thread_seconds() - start) / products as f64
                    })
                })
                .fold(f64::INFINITY, f64::min);
            println!(
                "{:>6} {count:>7} {:>9.3} {:>9.2} {:>9.1}",
                format!("{format:?}"),
                seconds * 1e3,
                matrix.stored_bytes() as f64 / seconds / 1e9,
                (2 * count * ROWS * COLS) as f64 / seconds / 1e9
            );
        }
    }
}
