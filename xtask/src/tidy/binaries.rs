//! Where bytes that are not text may lie, and how many: a clone must stay quick.

use super::Finding;
use super::tree::Tree;

const FOLDERS: [&str; 4] = ["fixtures/", "models/", CUBINS, PICTURES];
/// Kernels of a few KB, beside the source that they were compiled from.
const CUBINS: &str = "crates/gpu-model/tests/data/";
/// What words say worse, in the documents.
const PICTURES: &str = "docs/pictures/";
const LIMIT_MB: usize = 45;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut total_bytes = 0;
    for (path, bytes) in tree.iter() {
        if FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            total_bytes += bytes.len();
        } else if bytes.contains(&0) || std::str::from_utf8(bytes).is_err() {
            findings.push(Finding::new(
                path,
                1,
                "a binary file: these lie in fixtures/, models/, docs/pictures/ or the cubins' folder only",
            ));
        }
    }
    if total_bytes > LIMIT_MB * 1_000_000 {
        let mb = total_bytes / 1_000_000;
        findings.push(Finding::new(
            "models",
            1,
            format!("the folders of binary files hold {mb} MB, limit {LIMIT_MB} MB"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_have_their_place_and_their_size() {
        let tree = Tree::of([("README.md", "text")])
            .with_bytes("fixtures/a.safetensors", vec![0; 1000])
            .with_bytes("docs/picture.png", vec![137, 80, 0]);
        let found = check(&tree);
        assert_eq!((found.len(), found[0].path.as_str()), (1, "docs/picture.png"));
        let heavy = Tree::of([]).with_bytes("models/big.safetensors", vec![0; 46_000_000]);
        assert_eq!(check(&heavy).len(), 1);
    }
}
