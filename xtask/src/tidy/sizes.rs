//! How long source files may be: about 300 lines is comfortable, 600 wants a reason, 1,000 is two files.

use super::Finding;
use super::allow::AllowList;
use super::tree::Tree;

const LINES_WITHOUT_REASON: usize = 600;
const LINES_EVER: usize = 1000;
const ALLOW_LIST: &str = "xtask/allow/long-files.txt";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let allowed = AllowList::read(tree, ALLOW_LIST, &mut findings);
    let mut long_files = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_source(path)) {
        let lines = text.lines().count();
        if lines > LINES_EVER {
            let sentence = format!("{lines} lines: more than {LINES_EVER} are two files");
            findings.push(Finding::new(path, LINES_EVER + 1, sentence));
        } else if lines > LINES_WITHOUT_REASON && !allowed.allows(path) {
            let sentence = format!(
                "{lines} lines: more than {LINES_WITHOUT_REASON} need a line with a reason in {ALLOW_LIST}"
            );
            findings.push(Finding::new(path, LINES_WITHOUT_REASON + 1, sentence));
        }
        if lines > LINES_WITHOUT_REASON {
            long_files.push(path);
        }
    }
    allowed.report_unused(&long_files, &mut findings);
    findings
}

fn is_source(path: &str) -> bool {
    [".rs", ".cu", ".cuh"].iter().any(|ending| path.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_need_a_reason_and_very_long_ones_have_none() {
        let (short, long, endless) = ("x\n".repeat(600), "x\n".repeat(601), "x\n".repeat(1001));
        let tree = Tree::of([
            ("a.rs", &short),
            ("b.rs", &long),
            ("c.cu", &long),
            ("d.rs", &endless),
            ("notes.md", &endless),
            (ALLOW_LIST, "c.cu: one table\nd.rs: no excuse\n"),
        ]);
        let found: Vec<String> = check(&tree).iter().map(|finding| finding.path.clone()).collect();
        assert_eq!(found, ["b.rs", "d.rs"]);
    }

    #[test]
    fn an_exception_without_a_long_file_is_reported() {
        let found = check(&Tree::of([("a.rs", "x\n"), (ALLOW_LIST, "a.rs: was long\n")]));
        assert_eq!((found.len(), found[0].path.as_str(), found[0].line), (1, ALLOW_LIST, 1));
    }
}
