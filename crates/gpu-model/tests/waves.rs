//! Waves, split rules and the anomaly against the tables of the oracle (`data/formulas.json`).

#![allow(clippy::unwrap_used)]

use overshot_gpu_model::{Anomaly, SplitLaunch, SplitRule, TileCosts, Waves, anomaly};
use serde_json::Value;
use std::num::NonZeroU32;

fn formulas() -> Value {
    serde_json::from_str(include_str!("data/formulas.json")).unwrap()
}

fn rows<'a>(formulas: &'a Value, table: &str) -> impl Iterator<Item = Vec<f64>> + use<'a> {
    let rows = formulas[table]["rows"].as_array().unwrap();
    assert!(rows.len() >= 8);
    rows.iter().map(|row| row.as_array().unwrap().iter().map(|cell| cell.as_f64().unwrap()).collect())
}

fn number(value: f64) -> NonZeroU32 {
    NonZeroU32::new(value as u32).unwrap()
}

#[test]
fn split_choices_and_their_costs() {
    for row in rows(&formulas(), "splits") {
        let costs = TileCosts { t0: row[0], t1: 1.0, c: 0.0 };
        let launch = SplitLaunch::new(number(1.0), number(32.0), number(row[1]), costs).unwrap();
        let batch = row[2] as u32;
        let rules = [
            SplitRule::TargetCtas(number(384.0)),
            SplitRule::TargetCtas(number(512.0)),
            SplitRule::FlashAttention,
            SplitRule::Best,
        ];
        for (rule, expected) in rules.into_iter().zip(row[3..11].chunks(2)) {
            let splits = launch.splits(batch, rule);
            let found = [f64::from(splits), launch.time(batch, splits)];
            assert_eq!(found, expected, "{rule:?} of {row:?}");
        }
        assert_eq!(launch.persistent_time(batch), row[11], "{row:?}");
    }
}

#[test]
fn waves_of_the_anomaly() {
    let slots = number(188.0);
    for row in rows(&formulas(), "anomaly") {
        for (ctas, waves) in [(row[1], row[2]), (row[3], row[4])] {
            assert_eq!(Waves::of(ctas as u64, slots).waves as f64, waves, "{row:?}");
        }
    }
}

#[test]
fn last_batches_of_a_full_wave_on_an_h200() {
    for row in rows(&formulas(), "falsifiable") {
        let waves = |batch: f64| Waves::of((batch * row[1]) as u64, number(132.0 * row[0])).waves;
        assert_eq!((waves(row[2]), waves(row[2] + 1.0)), (1, 2), "{row:?}");
    }
}

#[test]
fn the_simplest_explanation_is_four_ctas_a_request() {
    let formulas = formulas();
    let input = |name: &str| formulas["anomaly_input"][name].as_f64().unwrap();
    let seen = Anomaly {
        slots: number(188.0),
        from_batch: 80,
        to_batch: 96,
        to_step_ms: input("step_ms_at_96"),
        other_ms: input("floor_ms"),
        other_ms_per_request: input("floor_ms_per_request"),
        noise_percent: 5.0,
    };
    let explanations = seen.explanations(16).unwrap();
    assert_eq!(anomaly::simplest(&explanations).unwrap().ctas_per_request, 4);
}
