//! Tables of llama-bench as CSV and as Markdown: rows of cells by the names of their columns.

use std::collections::BTreeMap;

pub type Row = BTreeMap<String, String>;

/// `None` for a text that is no such table.
pub fn llama_bench_rows(text: &str) -> Result<Option<Vec<Row>>, String> {
    if let Some(header) =
        text.lines().next().filter(|line| line.contains("build_commit") && line.contains("avg_ts"))
    {
        return rows(&csv_cells(header)?, text.lines().skip(1).map(csv_cells)).map(Some);
    }
    // A Markdown table may stand among a program's other words.
    let mut lines = text.lines().filter(|line| line.trim_start().starts_with('|'));
    let Some(header) = lines.next().map(markdown_cells) else { return Ok(None) };
    if !["model", "test", "t/s"].iter().all(|name| header.iter().any(|cell| cell == name)) {
        return Ok(None);
    }
    let is_rule = |line: &&str| line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
    rows(&header, lines.filter(|line| !is_rule(line)).map(|line| Ok(markdown_cells(line)))).map(Some)
}

fn rows(
    header: &[String],
    lines: impl Iterator<Item = Result<Vec<String>, String>>,
) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (index, cells) in lines.enumerate() {
        let cells = cells?;
        if cells.iter().all(String::is_empty) {
            continue;
        }
        if cells.len() != header.len() {
            return Err(format!(
                "row {} has {} cells where its table has {} columns: the file was cut short or edited",
                index + 1,
                cells.len(),
                header.len()
            ));
        }
        rows.push(header.iter().cloned().zip(cells).collect());
    }
    Ok(rows)
}

/// Cells with commas between, in quotes or not; a quote within quotes is doubled.
fn csv_cells(line: &str) -> Result<Vec<String>, String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut characters = line.trim_end_matches('\r').chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    if quoted {
        return Err("a quote is not closed: the file was cut short".into());
    }
    cells.push(cell);
    Ok(cells)
}

fn markdown_cells(line: &str) -> Vec<String> {
    line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}
