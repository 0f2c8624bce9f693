//! Where `unsafe` may stand, and that each block and impl says why it is sound: a `SAFETY` comment directly
//! above. An `unsafe fn` only passes the duty on; what its callers owe is clippy's to ask for.

use super::Finding;
use super::allow::AllowList;
use super::rust_text::{code_only, line_of, words};
use super::tree::Tree;

const ALLOW_LIST: &str = "xtask/allow/unsafe-files.txt";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let allowed = AllowList::read(tree, ALLOW_LIST, &mut findings);
    let mut with_unsafe = Vec::new();
    for (path, text) in tree.rust_files() {
        let code = code_only(text);
        let uses: Vec<usize> = words(&code, "unsafe").filter(|&at| !is_pointer_type(&code[at..])).collect();
        if let Some(&first) = uses.first() {
            with_unsafe.push(path);
            if !allowed.allows(path) {
                let sentence = format!("`unsafe` in a file that {ALLOW_LIST} does not list");
                findings.push(Finding::new(path, line_of(&code, first), sentence));
            }
        }
        let lines: Vec<&str> = text.lines().collect();
        for at in uses.into_iter().filter(|&at| !declares_function(&code[at..])) {
            let line = line_of(&code, at);
            if !says_why(&lines, line - 1) {
                findings.push(Finding::new(
                    path,
                    line,
                    "`unsafe` without a SAFETY comment directly above it",
                ));
            }
        }
    }
    allowed.report_unused(&with_unsafe, &mut findings);
    findings
}

/// `unsafe fn(..)` names a type and does nothing.
fn is_pointer_type(code: &str) -> bool {
    let after = code.trim_start_matches("unsafe").trim_start();
    let after = after.strip_prefix("extern").map_or(after, str::trim_start);
    after.strip_prefix("fn").is_some_and(|rest| rest.trim_start().starts_with('('))
}

/// `unsafe fn name` and `unsafe extern "C" fn name` (whose literal is blank here).
fn declares_function(code: &str) -> bool {
    let mut words = code.split_whitespace().skip(1);
    matches!((words.next(), words.next()), (Some("fn"), _) | (Some("extern"), Some("fn")))
}

/// Looks upward from the line of the word, over attributes and the earlier lines of the same statement.
fn says_why(lines: &[&str], at: usize) -> bool {
    let has_word = |line: &str| line.contains("SAFETY");
    if lines[at].split_once("//").is_some_and(|(_, comment)| has_word(comment)) {
        return true;
    }
    for line in lines[..at].iter().rev().map(|line| line.trim()) {
        if line.starts_with("//") {
            if has_word(line) {
                return true;
            }
        } else if line.is_empty() || [';', '{', '}'].iter().any(|&end| line.ends_with(end)) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(source: &str) -> Vec<usize> {
        let tree = Tree::of([("a.rs", source), (ALLOW_LIST, "a.rs: mapping files\n")]);
        check(&tree).iter().filter(|finding| finding.path == "a.rs").map(|finding| finding.line).collect()
    }

    #[test]
    fn each_use_says_why() {
        assert_eq!(lines("fn a() {\n    unsafe { b() }\n}\n"), [2]);
        assert!(
            lines("fn a() {\n    // SAFETY: checked above,\n    // twice.\n    unsafe { b() }\n}\n")
                .is_empty()
        );
        assert!(lines("// SAFETY: long line\nlet x: Long =\n    unsafe { b() };\n").is_empty());
        assert!(lines("pub unsafe fn a() {}\n").is_empty());
        assert_eq!(lines("unsafe impl Send for A {}\n"), [1]);
        assert_eq!(lines("// SAFETY: not this one\nlet y = 1;\nlet x = unsafe { b() };\n"), [3]);
    }

    #[test]
    fn words_in_comments_names_and_types_are_no_use() {
        assert!(lines("// unsafe\n#![deny(unsafe_code)]\ntype Kernel = unsafe fn(u8);\n").is_empty());
    }

    #[test]
    fn files_are_listed() {
        let found = check(&Tree::of([("b.rs", "// SAFETY: fine\nunsafe impl Send for B {}\n")]));
        assert_eq!(found.len(), 1);
        assert!(found[0].sentence.contains("does not list"));
        let stale = check(&Tree::of([("b.rs", "fn b() {}\n"), (ALLOW_LIST, "b.rs: none left\n")]));
        assert_eq!((stale.len(), stale[0].path.as_str()), (1, ALLOW_LIST));
    }
}
