//! Plain text tables and numbers for people. Anything that a program reads comes from `--json` instead.

use std::io::{self, Write};

/// Rows of cells, padded so that columns line up. Columns whose cells are numbers stand to the right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Table { rows: vec![head.iter().map(|cell| cell.to_string()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: usize, column: usize| self.rows[row].get(column).map_or("", String::as_str);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                (0..self.rows.len()).map(|row| cell(row, column).chars().count()).max().unwrap_or(0)
            })
            .collect();
        let to_the_right: Vec<bool> =
            (0..columns).map(|column| (1..self.rows.len()).all(|row| is_number(cell(row, column)))).collect();
        for row in 0..self.rows.len() {
            let mut line = String::from(" ");
            for column in 0..columns {
                let (text, width) = (cell(row, column), widths[column]);
                line += &if to_the_right[column] {
                    format!(" {text:>width$}")
                } else {
                    format!(" {text:<width$}")
                };
                line += " ";
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn is_number(cell: &str) -> bool {
    cell.is_empty() || cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit())
}

/// Bytes in the decimal units that disks and cards are sold in: `159.6 GB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 999.95 would print as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count with its thousands apart: `1,048,576`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(999_960), "1.0 MB");
        assert_eq!(bytes(159_600_000_000), "159.6 GB");
        assert_eq!(count(1_048_576), "1,048,576");
        assert_eq!(count(999), "999");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["kind", "bytes"]);
        table.row(["window".into(), "1".into()]);
        table.row(["csa".into(), "12,345".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  kind     bytes\n  window       1\n  csa     12,345\n");
    }
}
