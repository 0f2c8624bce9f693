//! Paths that documents name: every relative link, and every piece of code that looks like a path of this
//! repository, must exist. A document that speaks of something planned therefore does not give it a path.

use super::Finding;
use super::tree::Tree;

/// Endings that make a name without a folder a file of ours.
const SOURCE_ENDINGS: [&str; 5] = [".rs", ".md", ".cu", ".cuh", ".sh"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            let mut report = |name: &str| {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    format!("`{name}` does not exist in this repository"),
                ))
            };
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                words_of_fence(line).filter(|name| names_a_top_folder(tree, name)).for_each(|name| {
                    if !tree.exists(name) {
                        report(name);
                    }
                });
            } else {
                link_targets(line).filter(|target| !link_exists(tree, folder, target)).for_each(&mut report);
                code_spans(line).filter(|name| !code_exists(tree, folder, name)).for_each(&mut report);
            }
        }
    }
    findings
}

/// Targets of `[text](target)`, without anchors; addresses with a scheme and bare anchors are left out.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?.split_whitespace().next()?;
        let target = target.split('#').next()?;
        (!target.is_empty() && !target.contains(':')).then_some(target)
    })
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn words_of_fence(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '(' | ')' | ',' | '='))
        .map(|word| word.trim_end_matches([':', ';', '.']))
        .filter(|word| is_path_text(word))
}

fn link_exists(tree: &Tree, folder: &str, target: &str) -> bool {
    resolve(folder, target).is_some_and(|path| tree.exists(&path))
}

/// True as well for whatever does not look like a path of ours.
fn code_exists(tree: &Tree, folder: &str, name: &str) -> bool {
    if !is_path_text(name) {
        return true;
    }
    if names_a_top_folder(tree, name) {
        return tree.exists(name) || link_exists(tree, folder, name);
    }
    let is_source = SOURCE_ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending));
    !is_source || tree.exists_somewhere(name) || link_exists(tree, folder, name)
}

fn is_path_text(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    text.contains(['/', '.']) && !text.starts_with(['/', '-']) && text.chars().all(allowed)
}

fn names_a_top_folder(tree: &Tree, name: &str) -> bool {
    name.split_once('/').is_some_and(|(top, _)| !top.is_empty() && top != ".." && tree.has_folder(top))
}

/// `target` as seen from `folder`; `None` when it leaves the repository.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(path: &str, text: &str) -> Vec<String> {
        let tree =
            Tree::of([(path, text), ("crates/kv/src/lib.rs", ""), ("docs/glossary.md", ""), ("LICENSE", "")]);
        check(&tree).iter().map(|finding| finding.sentence.split('`').nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn links_resolve_from_their_document() {
        assert!(
            dead("README.md", "[a](docs/glossary.md#x) [b](https://example.org/y.md) [c](#z)").is_empty()
        );
        assert!(dead("docs/a.md", "[a](glossary.md) [b](../LICENSE)").is_empty());
        assert_eq!(
            dead("docs/a.md", "[a](docs/glossary.md) and [b](../../LICENSE)"),
            ["docs/glossary.md", "../../LICENSE"]
        );
    }

    #[test]
    fn code_that_looks_like_a_path_must_exist() {
        assert!(dead("README.md", "`crates/kv/`, `src/lib.rs`, `lib.rs`, `glossary.md`").is_empty());
        assert_eq!(
            dead("README.md", "`crates/kv/src/set.rs` `radix.rs`"),
            ["crates/kv/src/set.rs", "radix.rs"]
        );
        assert!(dead("README.md", "`config.json` `--kv f32` `a/b` `encoding/prompts.json` `.rs`").is_empty());
    }

    #[test]
    fn fenced_code_is_checked_for_paths_from_the_root_only() {
        assert!(dead("README.md", "```\ncargo run crates/kv/src/lib.rs out.md\n```\n").is_empty());
        assert_eq!(dead("README.md", "```\ncat crates/kv/gone.rs\n```\n"), ["crates/kv/gone.rs"]);
    }
}
