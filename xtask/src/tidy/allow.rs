//! Lists of exceptions: one `path: reason` a line, `#` starts a comment line.

use super::Finding;
use super::tree::Tree;

pub struct AllowList<'tree> {
    pub path: &'static str,
    entries: Vec<Entry<'tree>>,
}

struct Entry<'tree> {
    line: usize,
    path: &'tree str,
}

impl<'tree> AllowList<'tree> {
    /// An absent file is an empty list. Lines without a reason are findings and allow nothing.
    pub fn read(tree: &'tree Tree, path: &'static str, findings: &mut Vec<Finding>) -> Self {
        let mut entries = Vec::new();
        for (index, text) in tree.text(path).unwrap_or_default().lines().enumerate() {
            let (line, text) = (index + 1, text.trim());
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            match text.split_once(':') {
                Some((allowed, reason)) if !reason.trim().is_empty() => {
                    entries.push(Entry { line, path: allowed.trim() })
                }
                _ => findings.push(Finding::new(
                    path,
                    line,
                    "an exception needs a reason: write `path: reason`",
                )),
            }
        }
        AllowList { path, entries }
    }

    /// An entry that ends in `/` allows everything below that folder.
    pub fn allows(&self, path: &str) -> bool {
        self.entries.iter().any(|entry| entry.covers(path))
    }

    /// Entries that none of the paths in `needed` uses are reported: the list only ever says what is true.
    pub fn report_unused(&self, needed: &[&str], findings: &mut Vec<Finding>) {
        for entry in self.entries.iter().filter(|entry| !needed.iter().any(|path| entry.covers(path))) {
            let sentence = format!("`{}` needs no exception any more: delete this line", entry.path);
            findings.push(Finding::new(self.path, entry.line, sentence));
        }
    }
}

impl Entry<'_> {
    fn covers(&self, path: &str) -> bool {
        if self.path.ends_with('/') { path.starts_with(self.path) } else { path == self.path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_need_reasons_and_users() {
        let tree = Tree::of([("list", "# head\na.rs: one table\nsimd/: intrinsics\nb.rs\nold.rs: gone\n")]);
        let mut findings = Vec::new();
        let list = AllowList::read(&tree, "list", &mut findings);
        assert!(
            list.allows("a.rs") && list.allows("simd/x.rs") && !list.allows("b.rs") && !list.allows("simd")
        );
        list.report_unused(&["a.rs", "simd/x.rs"], &mut findings);
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [4, 5]);
    }
}
