//! Result files of other tools: their numbers come out as ours, whatever is wrong is told in a sentence, and no damage
//! makes a reader panic. Which samples the tools wrote themselves stands in `docs/lab-ab.md`.

#![allow(clippy::unwrap_used)]

use overshot_lab::ab::{ResultsFile, Verdict, compare_files};
use overshot_lab::import::{Import, Tool, append, understand};
use overshot_lab::sweep::Results;
use overshot_lab::{Metric, Point};
use std::path::Path;

const SAMPLES: [(&str, Tool); 9] = [
    ("vllm.json", Tool::Vllm),
    ("sglang.jsonl", Tool::Sglang),
    ("aiperf.json", Tool::Aiperf),
    ("genai_perf.json", Tool::Aiperf),
    ("guidellm.json", Tool::Guidellm),
    ("llama_bench.json", Tool::LlamaBench),
    ("llama_bench.csv", Tool::LlamaBench),
    ("llama_bench.md", Tool::LlamaBench),
    ("hyperfine.json", Tool::Hyperfine),
];

fn sample(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

fn import(name: &str) -> Import {
    understand(&sample(name), None).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Of the one run of a file.
fn value(name: &str, metric: Metric) -> f64 {
    let import = import(name);
    let [group] = import.groups.as_slice() else { panic!("{name}: {import:?}") };
    let [run] = group.runs.as_slice() else { panic!("{name}: {group:?}") };
    assert_eq!(run.point, Point::Mixed { streams: 2 }, "{name}");
    run.measurement.get(metric).unwrap_or_else(|| panic!("{name} has no {metric}"))
}

#[test]
fn tools_are_known_by_what_they_write() {
    for (name, tool) in SAMPLES {
        assert_eq!(import(name).tool, tool, "{name}");
    }
    assert_eq!(import("llama_bench.jsonl").groups, import("llama_bench.json").groups);
}

/// Numbers copied by eye from the samples.
#[test]
fn numbers_of_servers_come_out_as_ours() {
    for (name, metric, expected) in [
        ("vllm.json", Metric::TokensPerS, 76.8),
        ("vllm.json", Metric::FirstTokenMs, 131.25),
        ("vllm.json", Metric::TokenMs, 15.0),
        ("vllm.json", Metric::TokenGapMsP99, 60.0),
        ("sglang.jsonl", Metric::TokensPerS, 147.750_175_526_408_38),
        ("sglang.jsonl", Metric::TokenMs, 5.829_427_266_750_524),
        ("aiperf.json", Metric::TokensPerS, 58.686_290_107_931),
        ("aiperf.json", Metric::RequestsPerS, 4.890_524_175_660_917),
        ("aiperf.json", Metric::FirstTokenMs, 212.720_544),
        ("aiperf.json", Metric::TokenMs, 14.087_759_545_454_544),
        ("aiperf.json", Metric::TokenGapMs, 10.895_149_499_999_999),
        ("genai_perf.json", Metric::FirstTokenMsP99, 370.0),
        ("guidellm.json", Metric::TokensPerS, 119.380_042_240_010_25),
        ("guidellm.json", Metric::FirstTokenMs, 120.834_827_423_095_7),
        ("guidellm.json", Metric::TokenMs, 7.001_511_255_900_065),
    ] {
        let found = value(name, metric);
        assert!((found / expected - 1.0).abs() < 1e-9, "{name}: {metric} {found}, not {expected}");
    }
    for (name, setting, expected) in [
        ("vllm.json", "model", "dsv4-mini"),
        ("aiperf.json", "model", "dsv4-mini"),
        ("aiperf.json", "prompt_tokens", "32.0"),
        ("guidellm.json", "max_tokens", "16"),
        ("guidellm.json", "model", "dsv4-mini"),
    ] {
        assert_eq!(import(name).groups[0].settings[setting], expected, "{name}: {setting}");
    }
    // Python's Infinity is no JSON, and SGLang writes it.
    assert_eq!(import("sglang.jsonl").groups[0].settings["request_rate"], "Infinity");
}

#[test]
fn tests_of_llama_bench_are_prompts_and_one_stream() {
    let json = import("llama_bench.json");
    let [group] = json.groups.as_slice() else { panic!("{json:?}") };
    let points: Vec<Point> = group.runs.iter().map(|run| run.point).collect();
    let (prefill, decode) = (Point::Prefill { tokens: 512 }, Point::Decode { streams: 1 });
    // Both at once is neither: the third test is left out.
    assert_eq!(points, [prefill, prefill, prefill, decode, decode, decode]);
    assert_eq!(group.runs[0].measurement.get(Metric::FirstTokenMs), Some(2048.0));
    assert_eq!(group.runs[3].measurement.get(Metric::StepMs), Some(50.0));
    for name in ["llama_bench.csv", "llama_bench.md"] {
        let first = &import(name).groups[0];
        assert_eq!(first.runs.len(), 2, "{name}");
        let speed = first.runs[0].measurement.get(Metric::PromptTokensPerS).unwrap();
        assert!((speed - 250.5).abs() < 0.01, "{name}: {speed}");
    }
    let markdown = import("llama_bench.md");
    assert_eq!(markdown.groups.len(), 2, "at another depth is another setting");
    assert_eq!(markdown.groups[1].settings["depth"], "512");
}

#[test]
fn commands_of_hyperfine_are_told_apart_and_compared() {
    let import = import("hyperfine.json");
    let [short, long] = import.groups.as_slice() else { panic!("{import:?}") };
    assert_eq!((short.settings["command"].as_str(), short.runs.len()), ("sleep 0.02", 6));
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, group: usize| {
        let path = folder.path().join(name);
        let mut results = Results::open(&path, &import.groups[group].settings).unwrap();
        append(&import, &import.groups[group], Path::new("hyperfine.json"), &mut results).unwrap();
        let twice = append(&import, &import.groups[group], Path::new("hyperfine.json"), &mut results);
        assert!(twice.unwrap_err().to_string().contains("count them twice"));
        ResultsFile::read(&path).unwrap()
    };
    let (a, b) = (written("a", 0), written("b", 1));
    assert_eq!(long.runs.len(), 6);
    let [outcome] = &compare_files(&a, &b, None, 0.0, &[]).unwrap()[..] else { panic!() };
    assert_eq!((outcome.point, outcome.verdict), (Point::Program, Verdict::Loss));
}

#[test]
fn what_is_wrong_is_told_in_a_sentence() {
    let vllm = String::from_utf8(sample("vllm.json")).unwrap();
    let hyperfine = String::from_utf8(sample("hyperfine.json")).unwrap();
    let aiperf = String::from_utf8(sample("aiperf.json")).unwrap();
    let csv = String::from_utf8(sample("llama_bench.csv")).unwrap();
    for (text, part) in [
        (String::new(), "the file is empty"),
        ("  \n".into(), "the file is empty"),
        ("my notes".into(), "none of the result files that are known: vLLM"),
        ("{}".into(), "hyperfine (json)"),
        ("[]".into(), "an empty list"),
        ("[1, 2]".into(), "none of the result files"),
        (vllm[..vllm.len() / 2].into(), "cut short"),
        (hyperfine[..hyperfine.len() / 2].into(), "cut short"),
        (csv[..csv.len() - 60].into(), "cut short"),
        (format!("{vllm}{}", &vllm[..100]), "line 2: its JSON ends too soon"),
        (vllm.replace("76.8", "NaN"), "`output_throughput` is `\"NaN\"` where a number is expected"),
        (vllm.replace("76.8", "76.8.1"), "damaged"),
        (vllm.replace("76.8", "\"76.8 tok/s\""), "`output_throughput` is `\"76.8 tok/s\"` where a number"),
        (vllm.replace("\"max_concurrency\": 2", "\"max_concurrency\": null"), "say with --concurrency"),
        (vllm.replace("\"max_concurrency\": 2", "\"max_concurrency\": 2.5"), "its concurrency is 2.5"),
        (aiperf.replace("tokens/sec\"", "tokens\""), "is in `tokens` where a rate per second is expected"),
        (hyperfine.replace("0.022156542", "-1"), "`sleep 0.02` has the time -1 where seconds above 0"),
        (hyperfine.replace("\"times\"", "\"other\""), "has no list of times"),
        (format!("{vllm}{}", hyperfine.replace('\n', "")), "another one is not"),
    ] {
        let told = understand(text.as_bytes(), None).expect_err(&text);
        assert!(told.contains(part) && told.lines().count() == 1, "{told:?}, not {part:?}");
    }
    assert!(understand(&[0xff, 0xfe, 0x00], None).unwrap_err().contains("not text"));
    assert!(understand("[".repeat(100_000).as_bytes(), None).is_err());
    let open = vllm.replace("\"max_concurrency\": 2", "\"max_concurrency\": null");
    assert_eq!(
        understand(open.as_bytes(), Some(7)).unwrap().groups[0].runs[0].point,
        Point::Mixed { streams: 7 }
    );
}

#[test]
fn no_damage_makes_a_reader_panic() {
    let cases = overshot_testing::cases(2000);
    let samples: Vec<Vec<u8>> = SAMPLES.iter().map(|(name, _)| sample(name)).collect();
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut understood = 0;
    for _ in 0..cases {
        let mut bytes = samples[random.usize(..samples.len())].clone();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..5) {
                0 => bytes[at] = random.u8(..),
                // Digits become other digits, exponents and signs: numbers that still parse.
                1 => bytes[at] = *random.choice(b"0123456789eE-+.").unwrap(),
                2 => bytes.truncate(at.max(1)),
                3 => bytes.insert(at, random.u8(..)),
                _ => {
                    let end = (at + random.usize(1..40)).min(bytes.len());
                    bytes.drain(at..end);
                    bytes.extend_from_slice(b" ");
                }
            }
        }
        if let Ok(import) = understand(&bytes, None) {
            understood += 1;
            for run in import.groups.iter().flat_map(|group| &group.runs) {
                assert!(run.measurement.metrics.values().all(|value| value.is_finite()), "seed {seed}");
            }
        }
    }
    assert!(understood > 0, "seed {seed}: nothing was left readable, so little was tried");
}

/// Two programs whose commands differ beyond what is quoted are two things: mixed together they would compare with nothing.
#[test]
fn long_commands_stay_apart() {
    let result = |end: &str| format!(r#"{{"command": "{}{end}", "times": [1.0, 2.0]}}"#, "x".repeat(300));
    let report = format!(r#"{{"results": [{}, {}]}}"#, result("old"), result("new"));
    let import = understand(report.as_bytes(), None).unwrap();
    assert_eq!(import.groups.len(), 2, "{import:?}");
    assert!(import.groups.iter().all(|group| group.settings["command"].len() < 300));
}
