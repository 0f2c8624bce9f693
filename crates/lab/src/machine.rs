//! What this machine is, as far as it shapes speed: read from files that the system keeps for everybody. Nothing is loaded
//! and nothing is run; what a system does not tell is left out.

use crate::Settings;
use std::path::Path;

/// Processor, cores, kernel, governor; graphics cards and their driver.
pub fn fingerprint() -> Settings {
    fingerprint_below(Path::new("/"))
}

fn fingerprint_below(root: &Path) -> Settings {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let line = |path: &str| read(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let facts = [
        ("processor", read("proc/cpuinfo").as_deref().and_then(processor)),
        ("cores", Some(std::thread::available_parallelism().map_or(1, usize::from).to_string())),
        ("kernel", line("proc/sys/kernel/osrelease")),
        ("governor", line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        ("gpu", gpus(&root.join("proc/driver/nvidia/gpus"))),
        ("gpu_driver", read("proc/driver/nvidia/version").as_deref().and_then(driver)),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The processor's name, from the text of `/proc/cpuinfo`.
fn processor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// `2 x NVIDIA H200`: each folder below has the `information` of one card.
fn gpus(folder: &Path) -> Option<String> {
    let mut models = std::collections::BTreeMap::<String, usize>::new();
    for card in std::fs::read_dir(folder).ok()?.flatten() {
        let text = std::fs::read_to_string(card.path().join("information")).unwrap_or_default();
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"));
        *models.entry(model.unwrap_or("unknown").trim().to_owned()).or_default() += 1;
    }
    let told: Vec<String> = models.iter().map(|(model, count)| format!("{count} x {model}")).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// The first word that is a version, such as 570.86.15.
fn driver(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_where_systems_keep_them() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU 9\nprocessor : 1\n");
        write("proc/sys/kernel/osrelease", "6.1.0\n");
        for card in ["a", "b"] {
            write(&format!("proc/driver/nvidia/gpus/{card}/information"), "Model: \t NVIDIA H200\nIRQ: 1\n");
        }
        write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Module  570.86.15  Tue\nGCC 13.2.0\n");
        let found = fingerprint_below(root.path());
        let of = |name: &str| found.get(name).map(String::as_str);
        assert_eq!((of("processor"), of("kernel")), (Some("Some CPU 9"), Some("6.1.0")));
        assert_eq!((of("gpu"), of("gpu_driver")), (Some("2 x NVIDIA H200"), Some("570.86.15")));
        assert_eq!(of("governor"), None);
        assert!(fingerprint().contains_key("cores"));
    }
}
