//! Tables of text, for terminals and for Markdown, and numbers as people read them.

use std::io::{self, Write};

/// Rows of cells, padded so that columns line up. Columns whose cells are numbers stand to the right.
#[derive(Clone, Debug)]
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
        let layout = self.layout();
        for row in 0..self.rows.len() {
            let mut line = String::from(" ");
            for (column, &(width, to_the_right)) in layout.iter().enumerate() {
                let text = self.cell(row, column);
                line += &if to_the_right { format!(" {text:>width$}") } else { format!(" {text:<width$}") };
                line += " ";
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// As a Markdown table, columns of numbers to the right.
    pub fn markdown(&self) -> String {
        let layout = self.layout();
        let mut text = String::new();
        for row in 0..self.rows.len() {
            text.push('|');
            for column in 0..layout.len() {
                text += &format!(" {} |", self.cell(row, column).replace('|', "\\|"));
            }
            text.push('\n');
            if row == 0 {
                text.push('|');
                for (_, to_the_right) in &layout {
                    text += if *to_the_right { "---:|" } else { "---|" };
                }
                text.push('\n');
            }
        }
        text
    }

    fn cell(&self, row: usize, column: usize) -> &str {
        self.rows[row].get(column).map_or("", String::as_str)
    }

    /// Width of every column, and whether it stands to the right.
    fn layout(&self) -> Vec<(usize, bool)> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| (0..self.rows.len()).map(|row| self.cell(row, column).chars().count()).max();
        let is_numeric = |column| (1..self.rows.len()).all(|row| is_number(self.cell(row, column)));
        (0..columns).map(|column| (width(column).unwrap_or(0), is_numeric(column))).collect()
    }
}

fn is_number(cell: &str) -> bool {
    let size = cell.strip_prefix('-').unwrap_or(cell);
    size.is_empty() || size.starts_with(|c: char| c.is_ascii_digit())
}

const COLUMNS: usize = 100;

/// A sentence in lines that a terminal shows whole; those after the first begin with two spaces.
pub fn wrapped(sentence: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in sentence.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            text += "\n  ";
            column = 2;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += width;
    }
    text
}

/// Three to four digits that mean something: `1,234`, `123`, `12.3`, `1.23`, `0.0123`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value.is_finite() && size != 0.0 && !(1e-7..1e15).contains(&size) {
        return format!("{value:.2e}");
    }
    let decimals = match size {
        _ if !value.is_finite() || size >= 99.95 || size == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ => ((2.0 - size.log10().floor()) as usize).min(9),
    };
    let text = format!("{value:.decimals$}");
    if size < 999.5 || !value.is_finite() {
        return text;
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(size.round() as u64))
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

/// `3.1 %`.
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    if value.abs() >= 1e7 {
        return format!("{value:.1e} %");
    }
    if value.abs() >= 9.95 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_stay_within_a_terminal() {
        assert_eq!(wrapped("a short one."), "a short one.");
        let text = wrapped(&"seven77 ".repeat(40));
        assert!(
            text.lines().all(|line| line.chars().count() <= COLUMNS) && text.lines().count() == 4,
            "{text}"
        );
        assert!(text.lines().skip(1).all(|line| line.starts_with("  seven77")), "{text}");
        let long = "x".repeat(300);
        assert_eq!(wrapped(&format!("a {long}")), format!("a\n  {long}"));
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["kind", "bytes"]);
        table.row(["window".into(), "1".into()]);
        table.row(["csa".into(), "12,345".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  kind     bytes\n  window       1\n  csa     12,345\n");
        assert_eq!(table.markdown(), "| kind | bytes |\n|---|---:|\n| window | 1 |\n| csa | 12,345 |\n");
    }

    #[test]
    fn numbers_read_well() {
        for (value, text) in [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (1.234, "1.23"),
            (9.999, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (123.4, "123"),
            (999.6, "1,000"),
            (1_234_567.8, "1,234,568"),
            (-1234.0, "-1,234"),
            (f64::NAN, "NaN"),
            (1e-12, "1.00e-12"),
            (-1e308, "-1.00e308"),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
        assert_eq!((count(1_048_576), count(999)), ("1,048,576".into(), "999".into()));
        assert_eq!(percent(1e306), "1.0e308 %");
        assert_eq!((percent(0.031), percent(0.314)), ("3.1 %".into(), "31 %".into()));
    }
}
