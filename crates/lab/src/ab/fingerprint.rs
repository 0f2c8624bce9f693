//! Whether A and B were measured alike. Everything that shapes a number and is not what is being compared must be equal:
//! machine, driver, weights, lengths of prompts and answers. What people compare on purpose may differ, and is told.

use crate::{LabError, Settings};
use serde::Serialize;

/// The subject of comparisons: versions, commands, addresses, how the engine computes.
const MAY_DIFFER: [&str; 12] = [
    "backend",
    "build_commit",
    "chunk_tokens",
    "command",
    "flags",
    "numerics",
    "shown_as",
    "step_loop",
    "tool_flags",
    "url",
    "version",
    "server_version",
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub field: String,
    pub a: String,
    pub b: String,
}

/// What to do about fields that should be alike and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlike {
    Refuse,
    Allow,
}

/// All that differs, when the comparison may be made.
///
/// # Errors
/// Fields differ that make numbers incomparable; all of them are named.
pub fn check_alike(a: &Settings, b: &Settings, unlike: Unlike) -> Result<Vec<Difference>, LabError> {
    let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&String>| value.map_or("nothing".to_owned(), |value| format!("`{value}`"));
    let differences: Vec<Difference> = names
        .into_iter()
        .filter(|name| a.get(*name) != b.get(*name))
        .map(|name| Difference { field: name.clone(), a: shown(a.get(name)), b: shown(b.get(name)) })
        .collect();
    let refused: Vec<String> = differences
        .iter()
        .filter(|difference| !MAY_DIFFER.contains(&difference.field.as_str()))
        .map(|difference| format!("{} ({} in A, {} in B)", difference.field, difference.a, difference.b))
        .collect();
    if unlike == Unlike::Refuse && !refused.is_empty() {
        return Err(LabError::Unlike { differences: refused.join(", ") });
    }
    Ok(differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn unlike_machines_are_refused_and_unlike_versions_told() {
        let a = settings(&[("gpu", "H200"), ("version", "1"), ("model", "x")]);
        let b = settings(&[("gpu", "H100"), ("version", "2"), ("model", "x"), ("gpu_driver", "550")]);
        let error = check_alike(&a, &b, Unlike::Refuse).unwrap_err().to_string();
        assert!(
            error.contains("gpu (`H200` in A, `H100` in B), gpu_driver (nothing in A, `550` in B)"),
            "{error}"
        );
        assert!(!error.contains("version") && error.contains("--allow-unlike"), "{error}");
        let told = check_alike(&a, &b, Unlike::Allow).unwrap();
        assert_eq!(
            told.iter().map(|d| d.field.as_str()).collect::<Vec<_>>(),
            ["gpu", "gpu_driver", "version"]
        );
        assert_eq!(check_alike(&a, &a, Unlike::Refuse).unwrap(), []);
        let other_version = settings(&[("gpu", "H200"), ("version", "2"), ("model", "x")]);
        assert_eq!(check_alike(&a, &other_version, Unlike::Refuse).unwrap().len(), 1);
    }
}
