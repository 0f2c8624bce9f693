//! Man pages and completions, as packaging gets them: complete, and fit for the programs that read them.

#![cfg(feature = "manual")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

const COMMANDS: [&str; 9] =
    ["run", "chat", "serve", "score", "inspect", "bench", "lab", "doctor", "selftest"];

fn written(folder: &Path) {
    let run =
        Command::new(env!("CARGO_BIN_EXE_overshot")).args(["manual", "--out"]).arg(folder).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn the_man_page_names_every_command_and_each_has_its_own() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let page = std::fs::read_to_string(folder.path().join("overshot.1")).unwrap();
    assert!(!page.contains("manual"), "the command that writes the pages is none for users");
    for command in COMMANDS {
        assert!(page.contains(&format!("overshot\\-{command}(1)")), "{command} is missing in: {page}");
        let own = std::fs::read_to_string(folder.path().join(format!("overshot-{command}.1"))).unwrap();
        assert!(own.contains("\\-\\-help"), "{own}");
    }
    let serve = std::fs::read_to_string(folder.path().join("overshot-serve.1")).unwrap();
    assert!(serve.contains("\\-\\-drain\\-seconds"), "{serve}");
    // Two runs give the same bytes: a package can be built again.
    let again = tempfile::tempdir().unwrap();
    written(again.path());
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let name = entry.unwrap().file_name();
        let read = |folder: &Path| std::fs::read(folder.join(&name)).unwrap();
        assert_eq!(read(folder.path()), read(again.path()), "{name:?}");
    }
}

#[test]
fn bash_understands_its_completions_and_completes() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let script = folder.path().join("overshot.bash");
    let bash = |arguments: &[&str]| Command::new("bash").args(arguments).output().unwrap();
    let checked = bash(&["-n", script.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let ask = "source \"$0\"; COMP_WORDS=(overshot ser); COMP_CWORD=1; _overshot overshot ser overshot; echo \"${COMPREPLY[@]}\"";
    let completed = bash(&["-c", ask, script.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "serve");
    for name in ["_overshot", "overshot.fish"] {
        assert!(
            std::fs::read_to_string(folder.path().join(name)).unwrap().contains("drain-seconds"),
            "{name}"
        );
    }
}
