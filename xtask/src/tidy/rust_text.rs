//! Rust source as a tidy check needs to see it: without comments and literals, with or without its tests.
//! A small scanner, not a parser; it keeps every line where it was.

/// The text with comments and the insides of string and character literals blanked. Same bytes per line.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = at
            + if rest.starts_with(b"//") {
                rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
            } else if rest.starts_with(b"/*") {
                block_comment_bytes(rest)
            } else if let Some(bytes) = literal_bytes(rest, at.checked_sub(1).map(|before| bytes[before])) {
                bytes
            } else {
                at += 1;
                continue;
            };
        code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end;
    }
    // Whole literals and comments were blanked, so what is left splits no character.
    String::from_utf8_lossy(&code).into_owned()
}

/// `code` (made by [`code_only`]) with every item under `#[cfg(test)]` or `#[test]` blanked too.
pub fn without_tests(code: &str) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for attribute in ["#[cfg(test)]", "#[test]"] {
        let mut from = 0;
        while let Some(found) = find(&bytes[from..], attribute.as_bytes()) {
            let start = from + found;
            let end = start + item_bytes(&bytes[start..]);
            bytes[start..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
            from = end;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Byte offsets of `word` where no identifier goes on before or after it.
pub fn words<'code>(code: &'code str, word: &'code str) -> impl Iterator<Item = usize> + 'code {
    let part_of_name = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = code.as_bytes();
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        !part_of_name(before) && !part_of_name(bytes.get(at + word.len()))
    })
}

/// The line, counted from 1, of a byte offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// An item from its attribute to the brace or semicolon that ends it.
fn item_bytes(bytes: &[u8]) -> usize {
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    bytes.len()
}

fn block_comment_bytes(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (2, 1);
    while at < bytes.len() && depth > 0 {
        let step = match &bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
    }
    at.min(bytes.len())
}

/// Length of a string or character literal that starts here; `None` when none does (a lifetime is none).
fn literal_bytes(bytes: &[u8], before: Option<u8>) -> Option<usize> {
    let in_name = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match bytes {
        [b'"', ..] => Some(string_bytes(bytes)),
        [b'r', b'"' | b'#', ..] if !in_name => raw_string_bytes(bytes, 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !in_name => raw_string_bytes(bytes, 2),
        [b'\'', b'\\', ..] => Some(2 + 1 + find(bytes.get(3..)?, b"'")? + 1),
        [b'\'', rest @ ..] => {
            let head = &rest[..rest.len().min(4)];
            let valid_bytes = std::str::from_utf8(head).map_or_else(|error| error.valid_up_to(), str::len);
            let first = std::str::from_utf8(&head[..valid_bytes]).ok()?.chars().next()?;
            (rest.get(first.len_utf8()) == Some(&b'\'')).then_some(first.len_utf8() + 2)
        }
        _ => None,
    }
}

fn string_bytes(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_bytes(bytes: &[u8], prefix: usize) -> Option<usize> {
    let hashes = bytes[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    // `r#name` is an identifier.
    (bytes.get(prefix + hashes) == Some(&b'"')).then_some(())?;
    let close = format!("\"{}", "#".repeat(hashes));
    let body = prefix + hashes + 1;
    Some(find(&bytes[body..], close.as_bytes()).map_or(bytes.len(), |end| body + end + close.len()))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_go_lines_stay() {
        let source = "let a = \"x.unwrap()\"; // unwrap\n/* a /* b */\n unwrap */ let c = 'u'; let d: &'a str = r#\"un\"wrap\"#;\n";
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count());
        assert!(!code.contains("unwrap") && !code.contains("wrap"));
        assert!(code.contains("let d: &'a str"));
    }

    #[test]
    fn quotes_in_character_literals_open_no_string() {
        for literal in ["'\"'", "'\\''", "'\\\\'", "'\\u{2581}'", "'｜'", "b'\"'"] {
            let code = code_only(&format!("f({literal}); g.unwrap()"));
            assert!(code.ends_with("); g.unwrap()"), "{literal}: {code}");
        }
    }

    #[test]
    fn raw_identifiers_are_code() {
        assert_eq!(code_only("r#type.unwrap()"), "r#type.unwrap()");
    }

    #[test]
    fn tests_are_left_out() {
        let code = code_only(
            "fn a() { b.x(); }\n#[cfg(test)]\nmod tests {\n fn c() { d.y(); }\n}\nfn e() { f.z(); }\n",
        );
        let shipped = without_tests(&code);
        assert!(shipped.contains("b.x()") && shipped.contains("f.z()") && !shipped.contains("d.y()"));
        let import = without_tests("#[cfg(test)]\nuse a::b;\nfn c() {}\n");
        assert!(import.contains("fn c() {}"));
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(words("unsafe unsafe_code not_unsafe (unsafe)", "unsafe").collect::<Vec<_>>(), [0, 31]);
    }
}
