//! What every file says about itself and what none contains: head comments, `unwrap` outside tests, notes
//! to come back later, paths of somebody's machine.

use super::Finding;
use super::rust_text::{code_only, line_of, without_tests, words};
use super::tree::Tree;

// Split, so that this file does not find itself.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_FOLDERS: [&str; 5] = ["work", "tmp", "home", "root", "Users"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust_files() {
        check_head(path, text, &mut findings);
        check_unwrap(path, text, &mut findings);
    }
    for (path, text) in tree.texts().filter(|(path, _)| is_ours(path)) {
        check_words(path, text, &mut findings);
    }
    findings
}

/// Data, the licence and the lock file were not written here.
fn is_ours(path: &str) -> bool {
    let data = (path.starts_with("models/") || path.starts_with("fixtures/")) && !path.ends_with(".md");
    !data && path != "Cargo.lock" && path != "LICENSE"
}

fn check_head(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let head = if path.ends_with("/lib.rs") { "//!" } else { "//" };
    if !text.trim_start().starts_with(head) {
        let sentence = format!("starts without a `{head}` comment that says what the file is");
        findings.push(Finding::new(path, 1, sentence));
    }
}

fn check_unwrap(path: &str, text: &str, findings: &mut Vec<Finding>) {
    // `tests.rs` is a file's unit tests that outgrew it; the suite of every backend is tests in a crate of their own.
    if path.starts_with("crates/conformance/")
        || path.contains("/tests/")
        || path.contains("/benches/")
        || path.ends_with("/tests.rs")
    {
        return;
    }
    let shipped = without_tests(&code_only(text));
    for (at, _) in shipped.match_indices(".unwrap()") {
        let sentence = "`unwrap` outside tests: return an error, or `expect` with the reason it cannot fail";
        findings.push(Finding::new(path, line_of(&shipped, at), sentence));
    }
}

fn check_words(path: &str, text: &str, findings: &mut Vec<Finding>) {
    for marker in MARKERS {
        for at in words(text, marker) {
            let sentence = format!("`{marker}`: do it, or describe the limit where a reader needs it");
            findings.push(Finding::new(path, line_of(text, at), sentence));
        }
    }
    for folder in MACHINE_FOLDERS {
        let needle = format!("/{folder}/");
        for (at, _) in text.match_indices(&needle).filter(|(at, _)| starts_a_path(text, *at)) {
            let sentence = format!("`{needle}` is a path of one machine");
            findings.push(Finding::new(path, line_of(text, at), sentence));
        }
    }
}

/// Whether the slash at `at` begins an absolute path: inside `docs/home/` it does not.
fn starts_a_path(text: &str, at: usize) -> bool {
    let before = text[..at].chars().next_back();
    !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '~' | '}' | ')' | '/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Tree::of([(path, text)])).into_iter().map(|finding| (finding.line, finding.sentence)).collect()
    }

    #[test]
    fn files_begin_by_saying_what_they_are() {
        assert_eq!(findings("a.rs", "use b;\n").len(), 1);
        assert!(findings("a.rs", "// A thing.\nuse b;\n").is_empty());
        assert_eq!(findings("crates/a/src/lib.rs", "// A crate.\n").len(), 1);
        assert!(findings("crates/a/src/lib.rs", "//! A crate.\n").is_empty());
    }

    #[test]
    fn unwrap_is_for_tests() {
        let text = "//! a\nfn b() { c().unwrap(); }\n#[cfg(test)]\nmod tests { fn d() { e().unwrap(); } }\n";
        assert_eq!(findings("a.rs", text).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2]);
        for path in ["crates/a/tests/b.rs", "crates/conformance/src/b.rs"] {
            assert!(findings(path, "//! a\nfn b() { c().unwrap(); }\n").is_empty());
        }
        assert!(findings("a.rs", "//! a.unwrap()\nfn b() { c().unwrap_or(1); }\n").is_empty());
    }

    #[test]
    fn markers_and_machine_paths_are_found_in_any_text() {
        for marker in MARKERS {
            assert_eq!(findings("a.md", &format!("one\n{marker}: later\n"))[0].0, 2);
            assert!(findings("models/vocabulary.json", marker).is_empty());
        }
        let path = format!("see /{}/somebody/notes\n", MACHINE_FOLDERS[2]);
        assert_eq!(findings("run.sh", &path).len(), 1);
        let inner = format!("docs/{}/start and ~/{}/x\n", MACHINE_FOLDERS[2], MACHINE_FOLDERS[0]);
        assert!(findings("a.md", &inner).is_empty());
    }
}
