//! What `/metrics` prints: every name is documented, and whatever the documentation and the dashboard name is printed.

#![allow(clippy::unwrap_used)]

mod common;

use common::Server;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../packaging/grafana-overshot.json");

/// The names of families in a text: `overshot_..`, without what histograms add.
fn named(text: &str) -> BTreeSet<&str> {
    let is_of_name = |character: char| character.is_ascii_lowercase() || character == '_';
    let names = text.match_indices("overshot_").map(|(at, _)| {
        let rest = &text[at..];
        let name = &rest[..rest.find(|character| !is_of_name(character)).unwrap_or(rest.len())];
        ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
    });
    names.collect()
}

#[tokio::test]
async fn documentation_dashboard_and_server_name_the_same_metrics() {
    let server = Server::new();
    server.chat("a few words", json!({})).await;
    let text = server.get("/metrics").await.text();
    let printed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(named(DOCUMENT), printed, "docs/metrics.md");
    let shown = named(DASHBOARD);
    assert!(shown.is_subset(&printed), "the dashboard asks for {:?}", shown.difference(&printed));
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}

#[tokio::test]
async fn lengths_and_times_are_of_answers_that_ended_as_they_should() {
    let server = Server::new();
    let answer = server.chat("a few words", json!({"n": 2})).await;
    server.chat("forever and ever ", json!({"max_tokens": 5})).await;
    server.rests().await;
    let usage = &answer["usage"];
    for name in
        ["request_seconds", "request_queue_seconds", "request_prompt_tokens", "time_to_first_token_seconds"]
    {
        assert_eq!(server.metric(&format!("overshot_{name}_count")).await, 3, "{name}");
    }
    let drawn = usage["completion_tokens"].as_u64().unwrap() + 5;
    assert_eq!(server.metric("overshot_request_generated_tokens_sum").await, drawn);
    assert_eq!(server.metric("overshot_inter_token_seconds_count").await, drawn - 3);
    assert!(
        server.metric("overshot_request_prompt_tokens_sum").await
            >= 2 * usage["prompt_tokens"].as_u64().unwrap()
    );
    assert_eq!(server.metric("overshot_kv_faults").await, 0);
}
