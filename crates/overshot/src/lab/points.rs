//! A file of measured points: lines of `batch,splits,time`, a head line and lines that begin with `#` skipped.

use crate::failure::{bad_input, one_line};
use overshot_gpu_model::Measured;
use overshot_gpu_model::fit::POINTS_MAX;
use std::path::Path;

const FILE_BYTES_MAX: u64 = 16 << 20;

/// # Errors
/// A file that cannot be read, is too large, or has a line that is no point: named by its number.
pub fn read_points(path: &Path) -> anyhow::Result<Vec<Measured>> {
    let shown = path.display();
    let metadata =
        std::fs::metadata(path).map_err(|error| bad_input(format!("cannot open {shown}: {error}")))?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(bad_input(format!("{shown} is no file of points: they are text of at most 16 MB")));
    }
    let text =
        std::fs::read_to_string(path).map_err(|error| bad_input(format!("cannot read {shown}: {error}")))?;
    parse(&text).map_err(|reason| bad_input(format!("{shown}: {reason}")))
}

fn parse(text: &str) -> Result<Vec<Measured>, String> {
    let mut points = Vec::new();
    let mut first = true;
    // Spreadsheets begin a file with a byte order mark.
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match point(line) {
            Some(point) if points.len() < POINTS_MAX => points.push(point),
            Some(_) => return Err(format!("more than {POINTS_MAX} points")),
            // A head line names the columns.
            None if first && line.starts_with(|c: char| c.is_ascii_alphabetic()) => {}
            None => {
                let shown: String = one_line(line).chars().take(60).collect();
                return Err(format!("line {} is not batch,splits,time: `{shown}`", index + 1));
            }
        }
        first = false;
    }
    if points.is_empty() {
        Err("it holds no points: write lines of batch,splits,time".into())
    } else {
        Ok(points)
    }
}

fn point(line: &str) -> Option<Measured> {
    let cells: Vec<&str> = line.split([',', ';', '\t', ' ']).filter(|cell| !cell.is_empty()).collect();
    let [batch, splits, time] = cells.as_slice() else { return None };
    Some(Measured { batch: batch.parse().ok()?, splits: splits.parse().ok()?, time: time.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_come_with_or_without_a_head() {
        let expected =
            vec![Measured { batch: 64, splits: 2, time: 20.5 }, Measured { batch: 96, splits: 4, time: 1e1 }];
        assert_eq!(parse("batch,splits,ms\n64,2,20.5\n# quiet\n\n96, 4, 1e1\n"), Ok(expected.clone()));
        assert_eq!(parse("64 2 20.5\n96\t4\t10"), Ok(expected.clone()));
        assert_eq!(parse("\u{feff}batch;splits;ms\r\n64;2;20.5\r\n96;4;10\r\n"), Ok(expected.clone()));
        assert_eq!(parse("\u{feff}64,2,20.5\n96,4,10"), Ok(expected));
    }

    #[test]
    fn lines_that_are_no_points_are_named() {
        assert_eq!(parse("1,1,1\n1,2\n"), Err("line 2 is not batch,splits,time: `1,2`".into()));
        assert!(parse("").unwrap_err().contains("no points"));
        assert!(parse("a,b,c\nd,e,f\n").unwrap_err().contains("line 2"));
        assert!(parse("1,1,1\nbatch,splits,ms\n").unwrap_err().contains("line 2"));
        assert!(parse("-1,1,1\n").unwrap_err().contains("line 1"));
    }
}
