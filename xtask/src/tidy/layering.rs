//! Which crate may depend on which: the table below is the whole architecture. Development dependencies are
//! free, as a test may well stand on what lies above; nothing may depend on `xtask`.

use super::Finding;
use super::tree::Tree;

/// A crate's folder and the crates of this workspace that it may name. An absent folder has no rule.
const ALLOWED: [(&str, &[&str]); 14] = [
    ("model", &[]),
    ("chat", &[]),
    ("kv", &[]),
    ("backend", &["kv", "model"]),
    ("backend-cpu", &["backend", "kv", "model"]),
    ("backend-cuda", &["backend", "kv", "model", "gpu-model"]),
    ("conformance", &["backend", "kv", "model"]),
    ("engine", &["backend", "kv", "model"]),
    ("grammar", &["engine", "chat", "backend", "kv", "model"]),
    ("lab", &["gpu-model"]),
    ("gpu-model", &[]),
    ("testing", &[]),
    ("server", &["grammar", "engine", "chat", "backend", "kv", "model"]),
    (
        "overshot",
        &[
            "server",
            "lab",
            "gpu-model",
            "model",
            "chat",
            "kv",
            "backend",
            "backend-cpu",
            "backend-cuda",
            "engine",
        ],
    ),
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        let Some(name) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        match ALLOWED.iter().find(|(folder, _)| *folder == name) {
            Some((_, allowed)) => check_manifest(path, name, text, allowed, &mut findings),
            None => findings.push(Finding::new(
                path,
                1,
                format!("crate `{name}` has no line in the layering table of xtask/src/tidy/layering.rs"),
            )),
        }
    }
    findings
}

fn check_manifest(path: &str, name: &str, text: &str, allowed: &[&str], findings: &mut Vec<Finding>) {
    if !has_workspace_lints(text) {
        findings.push(Finding::new(
            path,
            1,
            "does not inherit the workspace's lints: add `[lints] workspace = true`",
        ));
    }
    for dependency in dependencies(text).filter(|dependency| !dependency.development) {
        let line = dependency.line;
        if let Some(inner) = dependency.name.strip_prefix("overshot-") {
            if !allowed.contains(&inner) {
                let sentence = format!("`{name}` may not depend on `{inner}`: arrows point down only");
                findings.push(Finding::new(path, line, sentence));
            }
        } else if dependency.name == "overshot" || dependency.name == "xtask" {
            let sentence = format!("`{name}` may not depend on `{}`, a program", dependency.name);
            findings.push(Finding::new(path, line, sentence));
        } else if dependency.name == "anyhow" && name != "overshot" {
            let sentence = "a library names its errors in an enum: `anyhow` is for the programs";
            findings.push(Finding::new(path, line, sentence));
        }
    }
}

struct Dependency<'text> {
    name: &'text str,
    line: usize,
    development: bool,
}

/// Reads `[dependencies]` tables in both spellings (`name = ..`, `name.workspace = ..`, `[dependencies.name]`).
fn dependencies(manifest: &str) -> impl Iterator<Item = Dependency<'_>> {
    let mut section = "";
    manifest.lines().enumerate().filter_map(move |(index, text)| {
        let (line, text) = (index + 1, text.trim());
        if let Some(header) = text.strip_prefix('[') {
            section = header.trim_end_matches(']');
            let (table, name) = section.rsplit_once('.')?;
            let development = kind_of_section(table)?;
            return Some(Dependency { name, line, development });
        }
        let development = kind_of_section(section)?;
        let (key, _) = text.split_once('=')?;
        let name = key.split('.').next().unwrap_or(key).trim();
        (!name.starts_with('#')).then_some(Dependency { name, line, development })
    })
}

/// Whether a table holds development dependencies; `None` when it holds no dependencies.
fn kind_of_section(section: &str) -> Option<bool> {
    let table = section.rsplit('.').next().unwrap_or(section);
    match table {
        "dependencies" | "build-dependencies" => Some(false),
        "dev-dependencies" => Some(true),
        _ => None,
    }
}

fn has_workspace_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim);
    lines.any(|line| line == "[lints]") && lines.next() == Some("workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn sentences(name: &str, tables: &str) -> Vec<String> {
        let path = format!("crates/{name}/Cargo.toml");
        let text = format!("{LINTS}{tables}");
        check(&Tree::of([(path.as_str(), text.as_str())])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn arrows_point_down() {
        assert!(
            sentences("engine", "[dependencies]\novershot-kv.workspace = true\nserde = \"1\"\n").is_empty()
        );
        let found = sentences("kv", "[dependencies]\novershot-engine.workspace = true\n");
        assert_eq!(
            found,
            ["crates/kv/Cargo.toml:4: `kv` may not depend on `engine`: arrows point down only"]
        );
        assert_eq!(sentences("chat", "[dependencies.overshot-model]\npath = \"../model\"\n").len(), 1);
        assert_eq!(sentences("chat", "[target.'cfg(unix)'.dependencies]\novershot-model = { }\n").len(), 1);
        assert!(sentences("chat", "[dev-dependencies]\novershot-model = { }\n").is_empty());
    }

    #[test]
    fn libraries_have_no_anyhow_and_all_inherit_lints() {
        assert_eq!(sentences("kv", "[dependencies]\nanyhow.workspace = true\n").len(), 1);
        assert!(sentences("overshot", "[dependencies]\nanyhow.workspace = true\n").is_empty());
        assert_eq!(check(&Tree::of([("crates/kv/Cargo.toml", "[package]\n")])).len(), 1);
    }

    #[test]
    fn a_new_crate_needs_a_line_in_the_table() {
        assert_eq!(sentences("plugins", "").len(), 1);
    }
}
