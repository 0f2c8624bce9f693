//! The lines of a run as one JSON object: what there is once stands by itself, what there is often in a list.

use serde_json::{Map, Value};

/// Kinds of which a run has one line.
const ONCE: [&str; 2] = ["device", "ceiling"];
const LISTS: [(&str, &str); 7] = [
    ("kernel", "kernels"),
    ("check", "checks"),
    ("time", "times"),
    ("schedule", "schedules"),
    ("matmul", "matmul"),
    ("prefill", "prefill"),
    ("sums", "sums"),
];

/// Lines that are no objects with a kind are left out: `run` writes none.
pub fn report(lines: &str) -> Map<String, Value> {
    let mut report = Map::new();
    for (_, list) in LISTS {
        report.insert(list.into(), Value::Array(vec![]));
    }
    for mut line in lines.lines().filter_map(|line| serde_json::from_str::<Map<String, Value>>(line).ok()) {
        let Some(Value::String(kind)) = line.remove("kind") else { continue };
        if ONCE.contains(&kind.as_str()) {
            report.insert(kind, Value::Object(line));
        } else if let Some((_, list)) = LISTS.iter().find(|(one, _)| *one == kind)
            && let Some(Value::Array(list)) = report.get_mut(*list)
        {
            list.push(Value::Object(line));
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_lists() {
        let lines = "{\"kind\":\"device\",\"sm\":90}\n{\"kind\":\"time\",\"us_p50\":1}\n{\"kind\":\"time\",\"us_p50\":2}\nno line\n";
        let found = Value::Object(report(lines));
        assert_eq!(found["device"]["sm"], 90);
        assert_eq!(found["times"][1]["us_p50"], 2);
        assert_eq!(found["checks"], Value::Array(vec![]));
    }
}
