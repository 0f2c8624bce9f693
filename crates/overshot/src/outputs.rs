//! Where the reports of measuring commands go: text or JSON to the terminal, a plot and Markdown to files.

use crate::failure::{bad_input, one_line};
use anyhow::Context;
use clap::Args;
use overshot_lab::report::{Form, Plot};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug)]
pub struct Outputs {
    /// Write a plot of all points to this file
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,

    /// Write the tables to this file, as Markdown
    #[arg(long, value_name = "FILE.md")]
    markdown: Option<PathBuf>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// What a command has to show.
pub trait Report {
    fn title(&self) -> &str;

    /// What was measured where, in a line.
    fn subtitle(&self) -> String;

    fn plot(&self) -> Plot;

    /// # Errors
    /// Those of `out`.
    fn text(&self, form: Form, out: &mut dyn Write) -> io::Result<()>;

    /// One object.
    ///
    /// # Errors
    /// Numbers that JSON does not have.
    fn json(&self) -> serde_json::Result<String>;
}

impl Outputs {
    /// That files can be written is found out before hours of measuring, not after.
    ///
    /// # Errors
    /// Names the flag whose file has no place.
    pub fn check(&self) -> anyhow::Result<()> {
        for (flag, path) in [("--svg", &self.svg), ("--markdown", &self.markdown)] {
            path.as_deref().map_or(Ok(()), |path| check_place(flag, path))?;
        }
        if self.svg.is_some() && self.svg == self.markdown {
            return Err(bad_input("--svg and --markdown are the same file: give two"));
        }
        Ok(())
    }

    /// # Errors
    /// A file or `out` cannot be written.
    pub fn write(&self, report: &dyn Report, out: &mut dyn Write) -> anyhow::Result<()> {
        let (title, subtitle) = (one_line(report.title()), one_line(&report.subtitle()));
        if let Some(path) = &self.svg {
            std::fs::write(path, report.plot().svg())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(path) = &self.markdown {
            let mut text = format!("## {title}\n\n{subtitle}\n").into_bytes();
            report.text(Form::Markdown, &mut text)?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            writeln!(out, "{}", report.json()?)?;
            return Ok(());
        }
        writeln!(out, "{title}")?;
        if !subtitle.is_empty() {
            writeln!(out, "{subtitle}")?;
        }
        let mut text = Vec::new();
        report.text(Form::Terminal, &mut text)?;
        // Names may come from a server or a trace.
        for line in String::from_utf8_lossy(&text).lines() {
            writeln!(out, "{}", one_line(line))?;
        }
        Ok(())
    }
}

/// # Errors
/// A folder that is not there, or one in place of the file.
pub fn check_place(flag: &str, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !folder.is_dir() {
        return Err(bad_input(format!("{flag} {}: there is no place for this file", path.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_for_files_are_looked_at_first() {
        let outputs = Outputs { svg: Some("no/such/folder/x.svg".into()), markdown: None, json: false };
        assert!(outputs.check().unwrap_err().to_string().contains("--svg no/such/folder/x.svg"));
    }
}
