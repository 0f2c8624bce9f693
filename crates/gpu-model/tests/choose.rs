//! The chooser against what was measured on an H200: the committed runs, every shape that both shipped kernels were timed at.
//! The table's own word of what its choices lose must be what they lose.

use overshot_gpu_model::runs::Run;
use overshot_gpu_model::table::Table;
use overshot_gpu_model::tune::{self, Candidate};
use std::path::Path;

fn runs(table: &Table) -> Vec<(String, Run)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &String| {
        let text = std::fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name.clone(), Run::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    table.runs.iter().map(read).collect()
}

#[test]
fn choices_lose_what_the_table_says_and_no_more() {
    let table = Table::built_in();
    let runs: Vec<Run> = runs(&table).into_iter().map(|(_, run)| run).collect();
    let (lost, misses) = tune::lost(&table, &tune::device(&runs).unwrap(), &runs);
    assert_eq!(lost, table.lost);
    let worst = misses.first().map(|miss| format!("{miss:?}"));
    assert!(
        lost.shapes >= 600 && lost.mean_percent <= 0.5 && lost.worst_percent <= 10.0,
        "{lost:?}, {worst:?}"
    );
}

/// The table is what `overshot lab tune` makes of these runs, not what a hand wrote.
#[test]
fn the_table_is_what_its_runs_give() {
    let table = Table::built_in();
    let candidate = |name: &str| {
        let entry = table.entry(name).unwrap();
        Candidate { shape: entry.shape.clone(), serves: entry.serves }
    };
    // Two of them: all would take longer than they teach.
    let candidates = ["v6_m1_t64_s4_x1", "v7_m1_t64_s4_q1"].map(candidate);
    let (again, left_out) = tune::tune(&candidates, &table.card, &runs(&table)).unwrap();
    assert!(left_out.is_empty());
    for entry in &again.kernels {
        assert_eq!(Some(entry), table.entry(&entry.shape.name));
    }
}
