//! Comma-separated lines, with quotes around cells that hold commas: as much of CSV as exported statistics use.

/// The cells of a line. A quote that is never closed ends with the line.
pub fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let cell = cells.last_mut().expect("there is always a cell");
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            _ => cell.push(character),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_commas_together() {
        assert_eq!(cells("a,b,"), ["a", "b", ""]);
        assert_eq!(cells("1,\"void k<int, float>(\"\"x\"\")\",2"), ["1", "void k<int, float>(\"x\")", "2"]);
        assert_eq!(cells(""), [""]);
        assert_eq!(cells("\"open, end"), ["open, end"]);
    }
}
