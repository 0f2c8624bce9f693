//! `overshot lab lever`, `plan` and `replay` as programs: what the documents show is what they print, our own plan follows
//! from its levers, and whatever a ledger refuses ends with one sentence and its exit code.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn overshot(folder: &Path, line: &str) -> Output {
    let words = words(line);
    Command::new(env!("CARGO_BIN_EXE_overshot")).args(words).current_dir(folder).output().unwrap()
}

/// As a shell would split a line that has double quotes only.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate().flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
        _ => vec![part.to_owned()],
    });
    parts.collect()
}

fn printed(folder: &Path, line: &str) -> String {
    let output = overshot(folder, line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, line: &str, code: i32, part: &str) {
    let output = overshot(folder, line);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {told}");
    assert!(told.contains(part) && told.lines().count() == 1, "{line}: {told}");
}

/// Commands of one document are one story: they run one after another in a folder of their own.
#[test]
fn the_transcripts_of_the_documents_are_real() {
    for (document, expected) in [("docs/lab-ledger.md", 9), ("docs/lab-tutorial.md", 8)] {
        let folder = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let mut compared = 0;
        for block in text.split("```console\n$ overshot ").skip(1) {
            let block = block.split("```").next().unwrap().replace("\\\n", " ");
            let (command, shown) = block.split_once('\n').unwrap_or((&block, ""));
            let output = overshot(folder.path(), command);
            let printed = [output.stdout, output.stderr].concat();
            let printed = String::from_utf8(printed).unwrap();
            // Dots stand for lines left out.
            for part in shown.split("...\n") {
                assert!(
                    printed.contains(part.trim()),
                    "{document}: `{command}` prints\n{printed}\nand not\n{part}"
                );
            }
            compared += 1;
        }
        assert_eq!(compared, expected, "{document}");
    }
}

#[test]
fn our_own_plan_follows_from_its_levers() {
    printed(&root(), "lab plan --check");
    printed(&root(), "lab lever check");
}

#[test]
fn a_plan_that_claims_something_else_fails_with_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    printed(folder.path(), "lab replay --out campaign");
    let levers = "lab plan --levers campaign/levers";
    printed(folder.path(), &format!("{levers} --out campaign/PLAN.md --check"));
    printed(folder.path(), &format!("{levers} --out campaign/PLAN.md"));
    printed(folder.path(), &format!("{levers} --out campaign/PLAN.md --check"));
    let page = folder.path().join("campaign/PLAN.md");
    let text = std::fs::read_to_string(&page).unwrap();
    std::fs::write(&page, text.replacen("not tested", "refuted", 1)).unwrap();
    refused(
        folder.path(),
        &format!("{levers} --out campaign/PLAN.md --check"),
        1,
        "no longer follows from the runs",
    );
    refused(folder.path(), &format!("{levers} --check"), 2, "cannot read campaign/levers/PLAN.md");
    refused(folder.path(), "lab replay --out campaign", 2, "it is there already");
}

/// Each reads, changes and writes the same file.
#[test]
fn commands_at_once_lose_no_run() {
    let folder = tempfile::tempdir().unwrap();
    printed(folder.path(), "lab replay --out c");
    let line =
        "lab lever --levers c/levers run split-by-batch --unit ms --better lower --before 2 --after 1 --what";
    std::thread::scope(|scope| {
        for number in 0..8 {
            let at = folder.path();
            scope.spawn(move || printed(at, &format!("{line} w{number}")));
        }
    });
    let shown = printed(folder.path(), "lab lever --levers c/levers show split-by-batch --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["runs"].as_array().unwrap().len(), 8);
}

#[test]
fn json_is_one_document() {
    let folder = tempfile::tempdir().unwrap();
    printed(folder.path(), "lab replay --out campaign");
    for line in [
        "lab replay",
        "lab plan --levers campaign/levers",
        "lab lever --levers campaign/levers list",
        "lab lever --levers campaign/levers show eight-warps",
    ] {
        let text = printed(folder.path(), &format!("{line} --json"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(json.is_object() || json.is_array(), "{line}");
    }
}

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    printed(at, "lab replay --out c");
    std::fs::create_dir(at.join("bad")).unwrap();
    let bad = |text: &[u8]| std::fs::write(at.join("bad/x.toml"), text).unwrap();
    for (text, part) in [
        (&b"title = 1"[..], "bad/x.toml, line 1"),
        (b"title = \"t\"\nhypothesis = \"h\"\nstatus = \"adopted\"\n", "`status` follows from the runs"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "missing field `title`"),
        (&[b'#'; 300_000], "longer than 256 KiB"),
    ] {
        bad(text);
        refused(at, "lab lever --levers bad list", 2, part);
        refused(at, "lab plan --levers bad", 2, part);
    }
    let run =
        "lab lever --levers c/levers run shared-memory-49k --what x --unit us --better lower --before 2";
    for (line, part) in [
        ("lab plan --levers nowhere".to_owned(), "cannot read nowhere"),
        ("lab plan --levers c/levers --out plan.txt".into(), "ends with .md"),
        ("lab lever --levers c/levers show nothing".into(), "there is no lever `nothing`"),
        ("lab lever --levers c/levers show ../c".into(), "no lever's name"),
        (format!("{run} --after 0"), "after is 0"),
        (format!("{run} --after NaN"), "after is NaN"),
        (format!("{run} --after 1 --interval 5"), "2 numbers with colons"),
        (format!("{run} --after 1 --interval 5:6"), "does not hold the uplift"),
        (format!("{run} --after 1 --spread 1:2:2.5"), "--spread ends with 2.5"),
        (format!("{run} --after 1 --band 1 --spread 1:2:3"), "cannot be used with"),
        (format!("{run} --after 1 --date yesterday"), "2026-11-29"),
        ("lab lever --levers c/levers close shared-memory-49k --adopted".into(), "nothing was measured"),
        ("lab lever --levers c/levers close shared-memory-49k --adopted --refuted".into(), "cannot be used with"),
        ("lab lever --levers c/levers run eight-warps --what x --unit us --better lower --before 2 --after 1".into(), "closed (refuted)"),
    ] {
        refused(at, &line, 2, part);
    }
    // Nothing of that was written.
    printed(at, "lab plan --levers c/levers --out c/PLAN.md");
    let source = "[[runs]]\nwhat = \"x\"\nunit = \"\"\nbetter = \"lower\"\nbefore = 2\nafter = 1\nsource = \"gone.jsonl\"\n";
    bad(format!("title = \"t\"\nhypothesis = \"h\"\n{source}[closed]\n").as_bytes());
    refused(at, "lab lever --levers bad check", 1, "2 of the ledger's claims do not hold");
}
