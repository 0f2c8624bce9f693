//! Server-sent events out of bytes that are cut anywhere. Keeps what servers are lax about: any line ending, a byte
//! order mark, blanks before a field, no blank after `data:`, comments, fields that nobody asked for.

/// Of one event. A delivery of an answer is a few hundred bytes.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// More than [`EVENT_BYTES_MAX`] without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTooLong;

#[derive(Debug, Default)]
pub struct EventSplitter {
    line: Vec<u8>,
    /// The data of the event so far.
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a carriage return: a line feed right behind it ends no further line.
    after_return: bool,
}

impl EventSplitter {
    /// Takes what came and calls `on_data` with the data of every event that it completes.
    ///
    /// # Errors
    /// An event beyond the bound; nothing after it is of use.
    pub fn feed(&mut self, mut bytes: &[u8], mut on_data: impl FnMut(&[u8])) -> Result<(), EventTooLong> {
        while let Some(at) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (part, rest) = bytes.split_at(at);
            let ending = rest[0];
            bytes = &rest[1..];
            self.extend_line(part)?;
            let is_second_half =
                ending == b'\n' && self.after_return && part.is_empty() && self.line.is_empty();
            self.after_return = ending == b'\r';
            if !is_second_half {
                self.end_line(&mut on_data)?;
            }
        }
        if !bytes.is_empty() {
            self.after_return = false;
        }
        self.extend_line(bytes)
    }

    /// The body has ended: an event without its blank line counts all the same.
    pub fn finish(&mut self, mut on_data: impl FnMut(&[u8])) {
        if self.end_line(&mut on_data).is_ok() && self.has_data {
            on_data(&self.data);
        }
        *self = EventSplitter::default();
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), EventTooLong> {
        if self.line.len() + self.data.len() + bytes.len() > EVENT_BYTES_MAX {
            return Err(EventTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, on_data: &mut impl FnMut(&[u8])) -> Result<(), EventTooLong> {
        let line = self.line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.line).trim_ascii_start();
        if line.is_empty() {
            if self.has_data {
                on_data(&self.data);
                self.data.clear();
                self.has_data = false;
            }
        } else if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            if self.data.len() + value.len() >= EVENT_BYTES_MAX {
                return Err(EventTooLong);
            }
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
            self.has_data = true;
        }
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let (mut splitter, mut found) = (EventSplitter::default(), Vec::new());
        let mut keep = |data: &[u8]| found.push(String::from_utf8(data.to_vec()).unwrap());
        for piece in pieces {
            splitter.feed(piece, &mut keep).unwrap();
        }
        splitter.finish(&mut keep);
        found
    }

    const LAX: &str = "\u{feff}data: {\"a\":\"\u{e9}\"}\n\n: waiting\n\nevent: x\ndata:two\r\ndata: lines\r\n\r\n  data:  three\r\r\
                       retry: 5\n\ndata: [DONE]";

    #[test]
    fn lax_servers_are_understood() {
        assert_eq!(events(&[LAX.as_bytes()]), ["{\"a\":\"\u{e9}\"}", "two\nlines", " three", "[DONE]"]);
    }

    #[test]
    fn it_does_not_matter_where_bytes_are_cut() {
        let whole = events(&[LAX.as_bytes()]);
        for at in 0..LAX.len() {
            let (a, b) = LAX.as_bytes().split_at(at);
            assert_eq!(events(&[a, b]), whole, "cut at {at}");
        }
        let single: Vec<&[u8]> = LAX.as_bytes().chunks(1).collect();
        assert_eq!(events(&single), whole);
    }

    /// Hostile bytes, cut anywhere, give the same events as in one piece, and no panic in reading them.
    #[test]
    fn any_bytes_are_survived() {
        let cases = overshot_testing::asked_cases();
        let seed = overshot_testing::seed();
        let mut random = fastrand::Rng::with_seed(seed);
        let parts: [&[u8]; 12] = [
            b"data:",
            b"data: ",
            b"\n",
            b"\r",
            b"\r\n\r\n",
            b"\n\n",
            b": x",
            b"\xef\xbb\xbf",
            b"{\"choices\":[{\"delta\":{",
            b"\"content\":\"\xc3",
            b"\"usage\":{\"prompt_tokens\":-1e99}",
            b"[DONE]",
        ];
        for case in 0..cases.unwrap_or(2000) {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(..30) {
                bytes.extend_from_slice(parts[random.usize(..parts.len())]);
                if random.u8(..4) == 0 {
                    bytes.push(random.u8(..));
                }
            }
            let read = |pieces: &[&[u8]]| {
                let (mut splitter, mut found) = (EventSplitter::default(), Vec::new());
                let mut keep = |data: &[u8]| {
                    let _ = crate::load::delivery::Delivery::parse(data);
                    found.push(data.to_vec());
                };
                for piece in pieces {
                    splitter.feed(piece, &mut keep).unwrap();
                }
                splitter.finish(&mut keep);
                found
            };
            let (one, two) = (random.usize(..=bytes.len()), random.usize(..=bytes.len()));
            let (a, b) = (one.min(two), one.max(two));
            let cut = read(&[&bytes[..a], &bytes[a..b], &bytes[b..]]);
            assert_eq!(cut, read(&[&bytes]), "seed {seed}, case {case}");
        }
    }

    #[test]
    fn endless_events_end() {
        let mut splitter = EventSplitter::default();
        let part = [b'x'; 1 << 16];
        let refused = (0..).take(100).find(|_| splitter.feed(&part, |_| {}).is_err());
        assert_eq!(refused, Some(EVENT_BYTES_MAX / part.len()));
        let mut splitter = EventSplitter::default();
        let line = [b"data: ".as_slice(), &part, b"\n"].concat();
        assert!((0..100).any(|_| splitter.feed(&line, |_| {}).is_err()));
    }
}
