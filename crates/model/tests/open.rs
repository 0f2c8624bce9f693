//! The checkpoints of the repository, opened through the public door.

use overshot_model::Model;
use std::path::PathBuf;

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn the_three_checkpoints_open() {
    for (path, layers) in [("fixtures/tiny-bf16", 4), ("fixtures/tiny-fp8fp4", 2), ("models/dsv4-mini", 7)] {
        let model = Model::open(repository(path)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.spec.layers.len(), layers);
        assert_eq!(model.weights.layers.len(), layers);
        println!("{path}: {:#?}", model.summary);
    }
}
