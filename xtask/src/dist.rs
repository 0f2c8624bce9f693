//! `cargo xtask dist`: the release tarball. It unpacks into a prefix such as `/usr/local`: the binary without symbols,
//! man pages, completions, the systemd unit, and the documents.
//!
//! Times, owners, modes and the order of its files depend on the commit alone, so the same binary gives the same bytes.
//! Not here: signing, uploading, images (`packaging/Containerfile`).

use anyhow::{Context, bail};
use clap::Args;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const TARGET: &str = "x86_64-linux-gnu";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where what the build made goes: the file's name, and its folder in the tarball.
const COMPLETIONS: [(&str, &str); 3] = [
    ("overshot.bash", "share/bash-completion/completions/overshot"),
    ("overshot.fish", "share/fish/vendor_completions.d/overshot.fish"),
    ("_overshot", "share/zsh/site-functions/_overshot"),
];
const DOCUMENTS: [&str; 2] = ["LICENSE", "README.md"];

#[derive(Args)]
pub struct Arguments {
    /// Folder that the tarball is written to [default: dist in the build's folder]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// A file of the tarball: where it comes from, and its path below the tarball's only folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    path: String,
    from: PathBuf,
}

impl Item {
    fn new(path: impl Into<String>, from: impl Into<PathBuf>) -> Self {
        Item { path: path.into(), from: from.into() }
    }
}

pub fn run(root: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        bail!(
            "this machine does not build for {TARGET}, the only target that is packaged: run it on one that does"
        );
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let scratch = target.join("dist-parts");
    remove(&scratch)?;
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;

    command(root, "cargo", &["build", "--release", "--locked", "-p", "overshot"])?;
    let binary = scratch.join("overshot");
    let built = target.join("release").join("overshot");
    command(root, "strip", &["--strip-all", "-o", text(&binary)?, text(&built)?])?;
    let manual = scratch.join("manual");
    write_manual(root, &manual)?;

    let mut items = vec![Item::new("bin/overshot", binary)];
    items.extend(manual_items(&manual)?);
    items.extend(repository_items(root)?);
    let out = arguments.out.clone().unwrap_or_else(|| target.join("dist"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let tarball = pack(items, &scratch, &out, &commit_time(root)?)?;
    let bytes = fs::read(&tarball).with_context(|| format!("cannot read {}", tarball.display()))?;
    println!("{}  {}", hex(&Sha256::digest(&bytes)), tarball.display());
    remove(&scratch)?;
    Ok(ExitCode::SUCCESS)
}

/// By a build of its own: what writes man pages is not part of the binary that ships.
fn write_manual(root: &Path, folder: &Path) -> anyhow::Result<()> {
    let build =
        ["run", "--quiet", "--locked", "-p", "overshot", "--no-default-features", "--features", "manual"];
    command(root, "cargo", &[&build[..], &["--", "manual", "--out", text(folder)?]].concat())
}

fn manual_items(folder: &Path) -> anyhow::Result<Vec<Item>> {
    let mut items: Vec<Item> =
        COMPLETIONS.iter().map(|(name, path)| Item::new(*path, folder.join(name))).collect();
    for name in names(folder)?.into_iter().filter(|name| name.ends_with(".1")) {
        items.push(Item::new(format!("share/man/man1/{name}"), folder.join(name)));
    }
    Ok(items)
}

/// What lies in the repository as it ships.
fn repository_items(root: &Path) -> anyhow::Result<Vec<Item>> {
    let mut items =
        vec![Item::new("lib/systemd/system/overshot.service", root.join("packaging/overshot.service"))];
    for name in DOCUMENTS {
        items.push(Item::new(format!("share/doc/overshot/{name}"), root.join(name)));
    }
    let docs = root.join("docs");
    for name in names(&docs)?.into_iter().filter(|name| name.ends_with(".md")) {
        items.push(Item::new(format!("share/doc/overshot/docs/{name}"), docs.join(name)));
    }
    Ok(items)
}

/// Copies the items to where they belong and has tar write them. `time` is in seconds since 1970.
fn pack(mut items: Vec<Item>, scratch: &Path, out: &Path, time: &str) -> anyhow::Result<PathBuf> {
    items.sort();
    let name = format!("overshot-{VERSION}-{TARGET}");
    for item in &items {
        let to = scratch.join(&name).join(&item.path);
        let folder = to.parent().unwrap_or(&to);
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::copy(&item.from, &to).with_context(|| format!("cannot copy {}", item.from.display()))?;
    }
    let tarball = out.join(format!("{name}.tar.gz"));
    let mtime = format!("--mtime=@{time}");
    let (from, to) = (text(scratch)?, text(&tarball)?);
    let fixed = ["--sort=name", "--format=ustar", "--owner=0", "--group=0", "--numeric-owner", &mtime];
    // The binary is the one file that its copy lets its owner run.
    let modes = ["--mode=u=rwX,go=rX", "--use-compress-program=gzip -9n"];
    let what = ["--create", "--file", to, "--directory", from, &name];
    command(scratch, "tar", &[&fixed[..], &modes, &what].concat())?;
    Ok(tarball)
}

/// The time of everything in the tarball: SOURCE_DATE_EPOCH if it is set, as elsewhere, else the commit's.
fn commit_time(root: &Path) -> anyhow::Result<String> {
    let time = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(time) => time,
        Err(_) => {
            let log = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root).output();
            String::from_utf8_lossy(&log.context("cannot run git, which knows the commit's time")?.stdout)
                .into_owned()
        }
    };
    let seconds: u64 = time.trim().parse().with_context(|| {
        format!(
            "`{}` is no time: set SOURCE_DATE_EPOCH to seconds since 1970, or run in a git clone",
            time.trim()
        )
    })?;
    Ok(seconds.to_string())
}

fn command(folder: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .status()
        .with_context(|| format!("cannot run {program}: is it installed?"))?;
    if !status.success() {
        bail!("{program} {} failed", arguments.join(" "));
    }
    Ok(())
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8: build in another folder", path.display()))
}

fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn root() -> PathBuf {
        crate::repository_root()
    }

    /// What stands in for the build: a binary, two pages, the completions.
    fn built(folder: &Path) -> Vec<Item> {
        let binary = folder.join("overshot");
        fs::write(&binary, "binary").unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o700)).unwrap();
        let manual = folder.join("manual");
        fs::create_dir(&manual).unwrap();
        for name in ["overshot.1", "overshot-serve.1", "overshot.bash", "overshot.fish", "_overshot"] {
            fs::write(manual.join(name), name).unwrap();
        }
        let mut items = vec![Item::new("bin/overshot", binary)];
        items.extend(manual_items(&manual).unwrap());
        items.extend(repository_items(&root()).unwrap());
        items
    }

    fn listed(tarball: &Path) -> Vec<String> {
        let list = Command::new("tar")
            .args(["--list", "--verbose", "--utc", "--file"])
            .arg(tarball)
            .output()
            .unwrap();
        String::from_utf8(list.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_tarball_has_all_of_it_and_the_same_bytes_each_time() {
        let mut digests = Vec::new();
        for _ in 0..2 {
            let folder = tempfile::tempdir().unwrap();
            let mut items = built(folder.path());
            // The order in which a folder lists its files is no order.
            fastrand::shuffle(&mut items);
            let scratch = folder.path().join("scratch");
            let tarball = pack(items, &scratch, folder.path(), "1700000000").unwrap();
            assert_eq!(
                tarball.file_name().unwrap().to_str().unwrap(),
                format!("overshot-{VERSION}-x86_64-linux-gnu.tar.gz")
            );
            let lines = listed(&tarball);
            for path in [
                "bin/overshot",
                "lib/systemd/system/overshot.service",
                "share/bash-completion/completions/overshot",
                "share/doc/overshot/LICENSE",
                "share/doc/overshot/README.md",
                "share/doc/overshot/docs/server.md",
                "share/fish/vendor_completions.d/overshot.fish",
                "share/man/man1/overshot.1",
                "share/man/man1/overshot-serve.1",
                "share/zsh/site-functions/_overshot",
            ] {
                let end = format!(" overshot-{VERSION}-{TARGET}/{path}");
                let line = lines
                    .iter()
                    .find(|line| line.ends_with(&end))
                    .unwrap_or_else(|| panic!("{path}: {lines:?}"));
                let mode = if path.starts_with("bin/") { "-rwxr-xr-x 0/0" } else { "-rw-r--r-- 0/0" };
                assert!(line.starts_with(mode), "{line}");
            }
            assert!(lines.iter().all(|line| line.contains(" 2023-11-14 ")), "{lines:?}");
            digests.push(hex(&Sha256::digest(fs::read(&tarball).unwrap())));
        }
        assert_eq!(digests[0], digests[1]);
    }

    /// An image and a unit that name what does not exist would be found by their users only.
    #[test]
    fn packaging_names_flags_and_times_that_hold() {
        let unit = fs::read_to_string(root().join("packaging/overshot.service")).unwrap();
        let stop: u64 =
            unit.split("TimeoutStopSec=").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        let serve = fs::read_to_string(root().join("crates/overshot/src/serve_options.rs")).unwrap();
        let drain =
            serve.split("drain_seconds: u32").next().unwrap().rsplit("default_value = \"").next().unwrap();
        let drain: u64 = drain.split('"').next().unwrap().parse().unwrap();
        assert!(
            stop > drain + 3,
            "systemd would kill the server after {stop} s, while answers have {drain} s"
        );
    }
}
