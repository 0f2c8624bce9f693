//! The GPUs that `overshot doctor` tells of, and what is missing to use them. The driver is looked for among files first; where
//! there is one, a process of its own loads and asks it: a driver that hangs or crashes costs that process, and the doctor says
//! so after ten seconds.

use crate::failure::one_line;
use crate::table::bytes;
use overshot_backend_cuda::cuda::{self, Compiler, DeviceFacts};
use overshot_backend_cuda::{archive, devices};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

#[derive(Serialize)]
pub struct Gpu {
    driver: Option<PathBuf>,
    /// Kernels in this binary, by architecture.
    built_in_kernels: BTreeMap<String, usize>,
    #[serde(flatten)]
    answer: Option<Answer>,
    /// What `--backend auto` takes here.
    auto_backend: &'static str,
    /// What stands between this machine and kernels on its GPUs, one sentence each.
    missing: Vec<String>,
}

/// What the process of its own found out.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    devices: Vec<DeviceFacts>,
    /// Version of the compiler that is there for kernels that are not built in.
    nvrtc: Option<(i32, i32)>,
    failure: Option<String>,
}

/// In the process of its own.
pub fn ask() -> Answer {
    let nvrtc = Compiler::open().ok().map(|compiler| compiler.version);
    match cuda::devices() {
        Ok(devices) => Answer { devices, nvrtc, failure: None },
        Err(error) => Answer { devices: vec![], nvrtc, failure: Some(error.to_string()) },
    }
}

impl Gpu {
    pub fn look() -> Self {
        let driver = driver();
        let built_in_kernels = archive::embedded().map(|archive| archive.counts()).unwrap_or_default();
        let answer = driver.as_ref().map(|_| ask_elsewhere().unwrap_or_else(failed));
        let nvrtc = answer.as_ref().is_some_and(|answer| answer.nvrtc.is_some());
        let has_kernels = |architecture: &str| nvrtc || devices::are_built_in(architecture);
        let auto_backend = auto_backend(answer.as_ref(), has_kernels);
        let missing = missing(answer.as_ref(), has_kernels);
        Gpu { driver, built_in_kernels, answer, auto_backend, missing }
    }

    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.driver {
            Some(path) => writeln!(out, "gpu driver      {}", path.display())?,
            None => writeln!(out, "gpu driver      none found")?,
        }
        for device in self.answer.iter().flat_map(|answer| &answer.devices) {
            let (major, minor) = (device.driver_cuda_version / 1000, device.driver_cuda_version % 1000 / 10);
            writeln!(
                out,
                "gpu             {}: sm_{}, {} multiprocessors, {}; driver for CUDA {major}.{minor}; `overshot selftest` checks its kernels",
                one_line(&device.name),
                device.sm,
                device.multiprocessors,
                bytes(device.memory_bytes as u64)
            )?;
        }
        let built_in: Vec<String> = self
            .built_in_kernels
            .iter()
            .map(|(architecture, count)| format!("{architecture} {count}"))
            .collect();
        let built_in =
            if built_in.is_empty() { "none built in".into() } else { built_in.join(", ") + " built in" };
        let nvrtc = self.answer.as_ref().and_then(|answer| answer.nvrtc);
        let nvrtc = nvrtc
            .map_or_else(String::new, |(major, minor)| format!("; NVRTC {major}.{minor} compiles others"));
        writeln!(out, "gpu kernels     {built_in}{nvrtc}")?;
        writeln!(out, "backend         {}, unless --backend says otherwise", self.auto_backend)?;
        self.missing.iter().try_for_each(|sentence| writeln!(out, "missing         {}", one_line(sentence)))
    }
}

/// As `--backend auto` does, with the first device.
fn auto_backend(answer: Option<&Answer>, has_kernels: impl Fn(&str) -> bool) -> &'static str {
    let usable = |answer: &&Answer| devices::check_unasked(&answer.devices, &[0], has_kernels).is_ok();
    if answer.filter(usable).is_some() { "cuda" } else { "cpu" }
}

fn missing(answer: Option<&Answer>, has_kernels: impl Fn(&str) -> bool) -> Vec<String> {
    let Some(answer) = answer else {
        return vec!["for a GPU: NVIDIA's driver, 580 or newer; models run on the processor without".into()];
    };
    let unusable = |ordinal| devices::check_unasked(&answer.devices, &[ordinal], &has_kernels).err();
    let unusable = (0..answer.devices.len()).filter_map(unusable).map(|reason| reason.to_string());
    answer.failure.clone().into_iter().chain(unusable).collect()
}

fn failed(reason: String) -> Answer {
    Answer { devices: vec![], nvrtc: None, failure: Some(reason) }
}

/// The driver's library where loaders look for it.
fn driver() -> Option<PathBuf> {
    const FOLDERS: [&str; 5] =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib"];
    let extra = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&extra).chain(FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join("libcuda.so.1")).find(|path| Path::exists(path))
}

fn ask_elsewhere() -> Result<Answer, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program does not find itself: {error}"))?;
    let mut command = Command::new(program);
    command.args(["doctor", "--ask-driver"]);
    let answer = answer_within(command, PATIENCE)?;
    serde_json::from_str(&answer).map_err(|_| "the driver ended the process that asked it".into())
}

/// What a process prints, unless it takes longer; then it is ended.
fn answer_within(mut command: Command, patience: Duration) -> Result<String, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("the driver cannot be asked: {error}"))?;
    let started = Instant::now();
    // The answer of any machine fits a pipe, so that waiting for the end before reading blocks nobody.
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if started.elapsed() >= patience {
            // Ended by itself meanwhile: as good.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("the driver did not answer within {} s", patience.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut answer = String::new();
    let printed = child.stdout.take().map(|out| out.take(ANSWER_BYTES_MAX).read_to_string(&mut answer));
    printed.unwrap_or(Ok(0)).map_err(|error| format!("the driver's answer cannot be read: {error}"))?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_process_that_hangs_is_ended() {
        assert_eq!(answer_within(shell("echo yes"), PATIENCE), Ok("yes\n".into()));
        let error = answer_within(shell("sleep 60"), Duration::from_millis(50)).unwrap_err();
        assert!(error.contains("did not answer"), "{error}");
        assert!(answer_within(Command::new("no-such-program"), PATIENCE).is_err());
    }

    #[test]
    fn what_is_missing_is_said() {
        let device: DeviceFacts = serde_json::from_str(
            r#"{"name":"NVIDIA H200","driver_cuda_version":13000,"sm":90,"multiprocessors":132,"memory_bytes":150109880320,
            "l2_bytes":62914560,"shared_bytes_per_sm":233472,"shared_bytes_per_cta":232448,"registers_per_sm":65536,
            "threads_per_sm":2048,"clock_khz":1980000,"memory_clock_khz":3201000,"memory_bus_bits":6016}"#,
        )
        .unwrap();
        let hopper = |architecture: &str| architecture == "sm_90a";
        let answer = Answer { devices: vec![device], nvrtc: None, failure: None };
        assert!(missing(None, hopper)[0].contains("driver"));
        assert!(missing(Some(&answer), |_: &str| false)[0].contains("GPU 0 (NVIDIA H200) has no kernels"));
        assert!(missing(Some(&answer), hopper).is_empty());
        assert_eq!(missing(Some(&failed("broken".into())), hopper), ["broken"]);
        assert_eq!(auto_backend(Some(&answer), hopper), "cuda");
        assert_eq!(auto_backend(Some(&answer), |_: &str| false), "cpu");
        assert_eq!(auto_backend(Some(&failed("broken".into())), hopper), "cpu");
        assert_eq!(auto_backend(None, hopper), "cpu");
        let gpu = Gpu {
            driver: Some("libcuda.so.1".into()),
            built_in_kernels: BTreeMap::from([("sm_90a".to_owned(), 4)]),
            answer: Some(answer),
            auto_backend: "cuda",
            missing: vec![],
        };
        let mut out = Vec::new();
        gpu.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("NVIDIA H200: sm_90, 132 multiprocessors, 150.1 GB; driver for CUDA 13.0"),
            "{text}"
        );
        assert!(text.contains("backend         cuda, unless"), "{text}");
    }
}
