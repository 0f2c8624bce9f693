//! `gpu-check run`: every decode kernel against float64, then timed; `gpu-check prefill`: attention and indexer of many
//! tokens likewise; `gpu-check matmul`: products and experts against float64;
//! `gpu-check sums`: sums over several GPUs. `gpu-check build FOLDER ARCHITECTURE...`: cubins
//! for a machine that has a GPU but no compiler; `gpu-check archive FILE`: the kernels of a release, for the build to put into
//! the binary. Both need NVRTC, no GPU. `gpu-check load MODEL DEVICE..`: how fast weights come to GPUs, beside a plain read.

use overshot_backend_cuda::archive;
use overshot_backend_cuda::cubins::{Cubins, Source};
use overshot_backend_cuda::cuda::Compiler;
use overshot_backend_cuda::devices;
use overshot_backend_cuda::selftest::{self, Options, matmul, prefill};
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: gpu-check build FOLDER ARCHITECTURE... [--only NAME]...
       gpu-check archive FILE [ARCHITECTURE]...
       gpu-check load MODEL [DEVICE]...
       gpu-check run [--cubins FOLDER] [--out FILE] [--seed N] [--rounds N] [--pool-entries N] [--repeats N] [--splits N] [--only NAME]...
                     [--decode-kernel NAME[:PARTS]] [--case NAME]... [--suite main|steps|few|large|long|uneven]... [--prices ROW,PART]
       gpu-check prefill [--seed N] [--rounds N]
       gpu-check matmul [SEED]
       gpu-check sums [DEVICE]...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((command, rest)) if command == "build" => build(rest),
        Some((command, [file, only @ ..])) if command == "archive" => write_archive(file, only),
        Some((command, [model, devices @ ..])) if command == "load" => load(model, devices),
        Some((command, devices)) if command == "sums" => sums(devices),
        Some((command, rest)) if command == "run" => run(rest),
        Some((command, rest)) if command == "prefill" => check_prefill(rest),
        Some((command, rest)) if command == "matmul" && rest.len() <= 1 => check_matmul(rest.first()),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn build(arguments: &[String]) -> Outcome {
    let (folder, rest) = arguments.split_first().ok_or(USAGE)?;
    let mut architectures = vec![];
    let mut only = vec![];
    let mut rest = rest.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--only" => only.push(rest.next().ok_or(USAGE)?.as_str()),
            architecture => architectures.push(architecture),
        }
    }
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder)?;
    let compiler = Compiler::open()?;
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part));
    for source in selftest::sources().into_iter().filter(|source| wanted(&source.name)) {
        for architecture in &architectures {
            let Source { name, text, headers, .. } = &source;
            let compiled = compiler.compile(name, text, headers, architecture, &source.options())?;
            std::fs::write(folder.join(format!("{name}.{architecture}.cubin")), &compiled.cubin)?;
            let report = compiled.log.lines().filter(|line| line.contains("Used ") || line.contains("spill"));
            println!(
                "{name} {architecture}:{}",
                report.map(|line| line.replace("ptxas", "").replace("info    :", "")).collect::<String>()
            );
        }
    }
    Ok(())
}

/// Of all architectures, or of some.
fn write_archive(file: &str, only: &[String]) -> Outcome {
    let compiler = Compiler::open()?;
    let cubins = Cubins { compiler, folder: Some(std::env::temp_dir().join("overshot-cubins")) };
    let mut kernels = Vec::new();
    let wanted = |architecture: &&str| only.is_empty() || only.iter().any(|only| only == architecture);
    for architecture in archive::ARCHITECTURES.into_iter().filter(wanted) {
        for source in archive::shipped_sources(architecture) {
            let cubin = cubins.get(&source, architecture)?;
            println!("{} {architecture}: {} bytes", source.name, cubin.len());
            kernels.push((source, architecture, cubin));
        }
    }
    let bytes = archive::pack(compiler.version, &kernels)?;
    std::fs::write(file, &bytes)?;
    println!("{file}: {} kernels in {} bytes; build with OVERSHOT_CUBINS={file}", kernels.len(), bytes.len());
    Ok(())
}

fn load(model: &str, ordinals: &[String]) -> Outcome {
    let ordinals: Vec<usize> = ordinals.iter().map(|number| number.parse()).collect::<Result<_, _>>()?;
    let gpus = devices::open(if ordinals.is_empty() { &[0] } else { &ordinals })?;
    Ok(selftest::loading::compare(model.as_ref(), &gpus, &mut std::io::stdout())?)
}

fn run(arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let mut out: Box<dyn std::io::Write> = Box::new(std::io::stdout());
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{flag} needs a value\n{USAGE}"))?;
        match flag.as_str() {
            "--cubins" => options.cubins = Some(value.into()),
            "--out" => out = Box::new(std::fs::File::create(value)?),
            "--seed" => options.seed = value.parse()?,
            "--rounds" => options.rounds = value.parse()?,
            "--pool-entries" => options.pool_entries = value.parse()?,
            "--splits" => options.splits = value.parse()?,
            "--repeats" => options.repeats = value.parse()?,
            "--case" => options.cases.push(value.clone()),
            "--suite" => options.suites.push(value.clone()),
            "--prices" => options.prices = Some(prices(value)?),
            "--only" => options.only.push(value.clone()),
            "--decode-kernel" => options.pin = Some(value.parse()?),
            _ => return Err(format!("unknown flag {flag}\n{USAGE}").into()),
        }
    }
    eprintln!("seed {}", options.seed);
    Ok(selftest::run(&options, &mut *out)?)
}

fn check_prefill(arguments: &[String]) -> Outcome {
    let mut options = prefill::Options { seed: fastrand::u64(..), rounds: 15 };
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{flag} needs a value\n{USAGE}"))?;
        match flag.as_str() {
            "--seed" => options.seed = value.parse()?,
            "--rounds" => options.rounds = value.parse()?,
            _ => return Err(format!("unknown flag {flag}\n{USAGE}").into()),
        }
    }
    eprintln!("seed {}", options.seed);
    Ok(prefill::run(&options, &mut std::io::stdout())?)
}

fn check_matmul(seed: Option<&String>) -> Outcome {
    let seed = seed.map_or_else(|| Ok(fastrand::u64(..)), |seed| seed.parse())?;
    eprintln!("seed {seed}");
    Ok(matmul::run(seed, &mut std::io::stdout())?)
}

fn sums(ordinals: &[String]) -> Outcome {
    let ordinals: Vec<usize> = ordinals.iter().map(|number| number.parse()).collect::<Result<_, _>>()?;
    let gpus = devices::open(if ordinals.is_empty() { &[0, 1] } else { &ordinals })?;
    Ok(selftest::sums::run(&gpus, &mut std::io::stdout())?)
}

fn prices(value: &str) -> Result<[i32; 2], Box<dyn std::error::Error>> {
    let (row, part) = value.split_once(',').ok_or("--prices takes two numbers: ROW,PART")?;
    Ok([row.parse()?, part.parse()?])
}
